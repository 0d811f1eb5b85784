"""Says once that something is away, and once that it is back, however often it was tried in between."""

from __future__ import annotations

import logging

from fairlead.errors import shown


class Outage:
    """`reason` is what anybody may be told; the log has all of it, and so has `cause`, for operators."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self.reason: str | None = None
        self.cause: str | None = None

    def began(self, error: BaseException) -> None:
        if self.reason is None:
            self._log.warning("%s: %s; trying again", self._what, error)
        self.reason, self.cause = shown(error), str(error)

    def ended(self) -> None:
        if self.reason is not None:
            self._log.info("%s: works again", self._what)
            self.reason = self.cause = None
