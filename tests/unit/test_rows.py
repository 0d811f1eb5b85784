"""Database rows become domain values, including rows that an earlier version wrote."""

from __future__ import annotations

from dataclasses import replace

from fairlead.domain.job import Job, Priority
from fairlead.store.rows import job_of, numbered, spec_of


def row(spec: str) -> list[object]:
    return [1, "j1", "ada", "draw", 1, 2, 0, 0, 0, 0, 1, 1, 1, *[None] * 18, spec]


def test_a_job_has_the_source_of_its_priority() -> None:
    job = Job("j1", "draw", "ada", ("draw",), original_priority=Priority.LOW, priority_source="service")
    assert job_of(row(spec_of(job))).priority_source == "service"
    assert numbered(job, 7).priority_source == "service"


def test_a_job_of_an_earlier_version_has_no_priority_source() -> None:
    job = job_of(row('[["draw"],3,null,1.0,null,null]'))
    assert job.priority_source is None
    assert (job.steps, job.original_priority, job.weight) == (("draw",), Priority.LOW, 1.0)


def test_a_job_keeps_its_plan_and_a_job_of_an_earlier_version_has_none() -> None:
    plain = Job("j1", "draw", "ada", ("draw",))
    for job in (plain, replace(plain, group="acme"), replace(plain, costs=(2.0,), priority_source="hook")):
        assert job_of(row(spec_of(replace(job, plan="gold")))).plan == "gold"
        assert job_of(row(spec_of(replace(job, plan="gold")))).costs == job.costs
        assert job_of(row(spec_of(job))).plan is None
    assert spec_of(plain) == '[["draw"],2,null,1.0,null,null]', "nothing is written for what a job does not use"
    assert spec_of(replace(plain, group="acme")).endswith('"acme"]')
