"""What the doctor says: one finding per trouble, with its cause, the evidence, and what mends it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """An error stands in the way of jobs, a warning is about to or makes a promise hollow, a note is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """`about` is the service, process, shard or setting that it is of. `fix` has its commands in backticks.

    `mark` is what must be the same at a second look for the finding to count as the same one."""

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
    """One of the things that can be found. `passing`: a line that is well may look like it for a moment, so it counts
    only if it is there at a second look as well."""

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
        return Finding(self.code, severity or self.severity, self.title, cause, fix, evidence, about, mark)


def shown(seconds: float) -> str:
    """12 s, 4 min, 3 h, 2 days: a length of time for a sentence."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def sentence(text: str) -> str:
    """What others said may have an end of its own."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def counted(count: int, what: str, does: str = "") -> str:
    """1 job, 2 jobs; 1 job waits, 2 jobs wait; 1 slot is, 2 slots are."""
    if count != 1:
        return f"{count} {what}s {does}".rstrip()
    return f"1 {what} {'is' if does == 'are' else f'{does}s' if does else ''}".rstrip()
