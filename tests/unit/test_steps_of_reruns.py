"""Which steps a retry or a re-run runs, as the dashboard's dialogs list them."""

from __future__ import annotations

from dataclasses import replace

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.reruns import begun
from fairlead.observe.dashboard.timeline import runs

FAILED = Job(
    id="j",
    feature_name="f",
    user_id="u",
    steps=("a", "b", "c"),
    step=1,
    status=JobStatus.FAILED,
    error={"code": "X", "message": "no"},
    retryable=False,
)
COMPLETED = replace(FAILED, status=JobStatus.COMPLETED, step=3, error=None, retryable=None)


def test_a_retry_continues_a_failed_job_to_its_end_and_earlier_steps_run_alone() -> None:
    assert runs(FAILED) == {"retry": [1, 2], "again": {"0": [0], "1": [1, 2]}}


def test_a_re_run_of_a_completed_job_runs_one_step() -> None:
    assert runs(COMPLETED) == {"again": {"0": [0], "1": [1], "2": [2]}}


def test_a_retry_of_a_failed_re_run_runs_that_step_alone() -> None:
    rerun = replace(FAILED, step=0, goes_back=begun(COMPLETED, 0))
    found = runs(rerun)
    assert found is not None
    assert found["retry"] == [0]


def test_open_jobs_and_turns_have_nothing_to_run_again() -> None:
    assert runs(replace(FAILED, status=JobStatus.RUNNING)) is None
    assert runs(replace(FAILED, turn="caller")) is None
