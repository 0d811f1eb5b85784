"""What a handler's exception means."""

from __future__ import annotations

from fairlead.domain.retry import EXCEPTION, PERMANENT, RETRY_ASKED, TIMEOUT, Failure
from fairlead.errors import Permanent, Retry

LONGEST = 2000


def failure_of(error: BaseException) -> Failure:
    """Any exception of a function may pass with another try, unless it says otherwise."""
    match error:
        case Permanent():
            return Failure(PERMANENT, said(error), retryable=False)
        case Retry():
            return Failure(RETRY_ASKED, said(error), retryable=True, retry_after=error.after)
        case TimeoutError():
            return Failure(TIMEOUT, said(error), retryable=True)
        case _:
            return Failure(EXCEPTION, f"{type(error).__name__}: {said(error)}", retryable=True)


def said(error: BaseException) -> str:
    try:
        return storable(str(error)) or type(error).__name__
    except Exception:  # a __str__ of its own that fails
        return type(error).__name__


def storable(text: str) -> str:
    """Text that can be kept as JSON: lone surrogates replaced, and not too long."""
    return text[:LONGEST].encode("utf-8", "replace").decode()
