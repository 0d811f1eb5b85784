"""A finding: one problem, with its cause, its evidence and its fix."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fairlead.domain.redaction import redacted


class Severity(StrEnum):
    """How severe a finding is. Error: jobs are blocked. Warning: jobs will be blocked soon, or a guarantee does not
    hold. Note: information only."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `about` is the service, process, shard or setting that has the problem. `fix` has commands in
    backticks.

    A transient finding is confirmed if the second examination has a finding with the same code, `about` and `mark`.
    """

    code: str
    severity: Severity
    title: str
    cause: str
    fix: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    mark: Hashable = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity.value,
            "title": self.title,
            "about": self.about or None,
            "cause": self.cause,
            "evidence": dict(self.evidence),
            "fix": self.fix,
        }

    @property
    def identity(self) -> Hashable:
        return self.code, self.about, self.mark


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding. `passing`: a healthy system may show such a finding for a moment, so a second examination has
    to confirm it."""

    code: str
    severity: Severity
    title: str
    passing: bool = False

    def found(
        self,
        cause: str,
        *,
        fix: str,
        about: str = "",
        mark: Hashable = None,
        severity: Severity | None = None,
        **evidence: Any,
    ) -> Finding:
        shown = {name: redacted(value) if isinstance(value, str) else value for name, value in evidence.items()}
        return Finding(self.code, severity or self.severity, self.title, redacted(cause), fix, shown, about, mark)


def shown(seconds: float) -> str:
    """Format a duration: 12 s, 4 min, 3 h, 2 days."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def sentence(text: str) -> str:
    """Add a final period to the text, unless it already ends with a punctuation mark."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def counted(count: int, what: str, does: str = "") -> str:
    """Format a count with its noun and verb: 1 job, 2 jobs; 1 job waits, 2 jobs wait; 1 slot is, 2 slots are."""
    if count != 1:
        return f"{count} {what}s {does}".rstrip()
    return f"1 {what} {'is' if does == 'are' else f'{does}s' if does else ''}".rstrip()
