"""The shapes of the doctor's answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fairlead.gateway.models import Shape, example

_FINDING = {
    "code": "service-paused",
    "severity": "warning",
    "title": "a service is paused",
    "about": "image_gen",
    "cause": "an operator paused image_gen: nothing is granted from its line, 12 jobs wait",
    "evidence": {"service": "image_gen", "waiting": 12},
    "fix": "`fairlead unpause image_gen`",
}


class DoctorFinding(Shape):
    model_config = example(**_FINDING)

    code: str = Field(description="Stable; docs/doctor.md has them all.")
    severity: Literal["error", "warning", "note"]
    title: str
    about: str | None = Field(description="The service, process, shard or setting that it is of.")
    cause: str
    evidence: dict[str, Any] = Field(description="What was seen, by name.")
    fix: str = Field(description="What mends it; commands are in backticks.")


class Diagnosis(Shape):
    model_config = example(well=False, errors=0, warnings=1, notes=0, findings=[_FINDING])

    well: bool = Field(description="Neither errors nor warnings.")
    errors: int
    warnings: int
    notes: int
    findings: list[DoctorFinding] = Field(description="Worst first.")
