"""Whose job a request of a front is."""

from __future__ import annotations

from fairlead.domain.access import Role
from fairlead.domain.submission import ANONYMOUS, MAX_USER_ID
from fairlead.errors import InvalidInput
from fairlead.gateway.permissions import Caller
from fairlead.gateway.problems import Forbidden

USER_HEADER = "X-Fairlead-User"
_USER = USER_HEADER.lower().encode()


def named_user(headers: dict[bytes, bytes]) -> str | None:
    """The user that the header of a request names."""
    given = headers.get(_USER)
    return given.decode("utf-8", "replace") if given else None


def user_of(caller: Caller, headers: dict[bytes, bytes], named: str | None = None) -> str:
    """The user of a job. A user's key is always its own user. With any other key it is the user of the header, or the
    one that the request itself names (`named`), which means nothing for a user's key."""
    in_header = named_user(headers)
    if caller.role is Role.USER:
        assert caller.user_id is not None
        if in_header is not None and in_header != caller.user_id:
            raise Forbidden(f"a user's key submits that user's own jobs; omit {USER_HEADER}")
        return caller.user_id
    user = in_header or named or ANONYMOUS
    if len(user) > MAX_USER_ID or "\0" in user:
        raise InvalidInput(f"the user must have at most {MAX_USER_ID} characters, and no NUL", pointer="/user")
    return user
