"""Checks the arguments that callers of turns pass, before a turn is stored."""

from __future__ import annotations

from typing import Any

from fairlead.domain.json_codec import NotJson, to_json
from fairlead.domain.submission import ANONYMOUS
from fairlead.errors import InvalidInput, TooLarge


class SlotUser(str):
    """The type of `SLOTS`. Its own type distinguishes `SLOTS` from the plain string "-slots-", which is refused as a
    user_id."""


SLOTS = SlotUser("-slots-")
"""The user_id of turns that belong to no user (`app.slot`)."""


def result_json(result: Any, max_bytes: int) -> str:
    try:
        text = to_json(result)
    except NotJson as error:
        raise InvalidInput(f"the result of a turn must be JSON: {error}", pointer="/result") from None
    if len(text) > max_bytes:
        raise TooLarge(f"the result is over {max_bytes} bytes", pointer="/result")
    return text


def user_of(user_id: object) -> str:
    if user_id is None:
        return ANONYMOUS
    if str(user_id) == SLOTS and not isinstance(user_id, SlotUser):
        raise InvalidInput(f"the user_id {SLOTS!r} is reserved for slots without a user", pointer="/user_id")
    return str(user_id)


def check_wait_timeout(wait_timeout: Any) -> float | None:
    if wait_timeout is None:
        return None
    if isinstance(wait_timeout, bool) or not isinstance(wait_timeout, int | float) or not 0 < wait_timeout < 1e9:
        raise InvalidInput("wait_timeout must be a number of seconds above 0", pointer="/wait_timeout")
    return float(wait_timeout)
