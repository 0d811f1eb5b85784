"""Logs an outage once when it begins and once when it ends."""

from __future__ import annotations

import logging

from fairlead.errors import shown


class Outage:
    """Logs an outage when it begins and when it ends. `reason` is safe to show to any client. `cause` is the full
    message, for operators and the log."""

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
