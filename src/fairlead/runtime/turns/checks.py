"""What callers of turns say, checked before anything is stored."""

from __future__ import annotations

from typing import Any

from fairlead.domain.wire import NotJson, to_json
from fairlead.errors import InvalidInput, TooLarge
from fairlead.runtime.submission import ANONYMOUS


class Slots(str):
    """The user of slots without one. No text that a caller gives is of this kind."""


SLOTS = Slots("-slots-")


def result_json(result: Any, most: int) -> str:
    try:
        text = to_json(result)
    except NotJson as error:
        raise InvalidInput(f"the result of a turn must be JSON: {error}", pointer="/result") from None
    if len(text) > most:
        raise TooLarge(f"the result is over {most} bytes", pointer="/result")
    return text


def user_of(user_id: object) -> str:
    if user_id is None:
        return ANONYMOUS
    if str(user_id) == SLOTS and not isinstance(user_id, Slots):
        raise InvalidInput(f"the user_id {SLOTS!r} stands for slots without a user", pointer="/user_id")
    return str(user_id)


def patience_of(wait_timeout: Any) -> float | None:
    if wait_timeout is None:
        return None
    if isinstance(wait_timeout, bool) or not isinstance(wait_timeout, int | float) or not 0 < wait_timeout < 1e9:
        raise InvalidInput("wait_timeout must be a number of seconds above 0", pointer="/wait_timeout")
    return float(wait_timeout)
