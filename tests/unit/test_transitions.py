"""The transitions of a job: what each leads to, and from which states it is refused."""

from dataclasses import replace

import pytest

from fairlead.domain import transitions
from fairlead.domain.job import Hold, Job, JobStatus, Priority, StepResult, hold_of
from fairlead.domain.reruns import MOST_ROUNDS
from fairlead.domain.retry import MOST_SPARED, Backoff, Failure, RetryPolicy
from fairlead.domain.transitions import Move, Prioritise
from fairlead.errors import WrongState

NOW = 1_000.0
NO_WAITS: dict[str, float] = {}
JOB = Job(id="j", feature_name="f", user_id="u", steps=("a", "b"), run=7, queued_at=900.0, waiting_since=900.0)
RUNNING = replace(JOB, status=JobStatus.RUNNING, attempt=1, lease="1:1", worker="w", call_started_at=990.0)
FAILED = replace(
    JOB, status=JobStatus.FAILED, attempt=3, step=1, finished_at=950.0, retryable=True, error={"code": "X"}
)
PASSING = Failure("CONNECTION", "reset", retryable=True)


def result_of(job: Job) -> StepResult:
    return StepResult(job.id, job.step, job.service, job.round, '{"x":1}', "{}", NOW, job.lease)


def test_a_job_without_a_due_time_is_pending_at_once() -> None:
    job = transitions.submit(JOB, "{}", now=NOW, waits=NO_WAITS).job
    assert (job.status, job.queued_at, job.timer_at) == (JobStatus.PENDING, NOW, None)


def test_a_job_due_later_is_scheduled_and_not_yet_queued() -> None:
    job = transitions.submit(replace(JOB, queued_at=None), "{}", now=NOW, due_at=NOW + 60, waits=NO_WAITS).job
    assert (job.status, job.queued_at, job.timer_at, job.scheduled_at) == (
        JobStatus.SCHEDULED, None, NOW + 60, NOW + 60,
    )  # fmt: skip


def test_a_due_time_in_the_past_means_now() -> None:
    assert transitions.submit(JOB, "{}", now=NOW, due_at=NOW - 5, waits=NO_WAITS).job.status is JobStatus.PENDING


def test_the_timer_of_a_waiting_job_is_the_earlier_of_wait_timeout_and_deadline() -> None:
    waits = {"a": 30.0}
    assert transitions.submit(JOB, "{}", now=NOW, waits=waits).job.timer_at == NOW + 30
    soon = replace(JOB, deadline_at=NOW + 10)
    assert transitions.submit(soon, "{}", now=NOW, waits=waits).job.timer_at == NOW + 10


def test_a_completed_step_queues_the_next_one_with_fresh_attempts() -> None:
    move = transitions.step_done(RUNNING, result_of(RUNNING), now=NOW, waits=NO_WAITS)
    assert (move.status, move.step, move.attempt, move.tells_line) == (JobStatus.PENDING, 1, 0, True)
    assert move.run == RUNNING.run
    assert move.queued_at is None, "promotion counts from acceptance, not per step"


def test_the_last_step_completes_the_job() -> None:
    last = replace(RUNNING, step=1)
    move = transitions.step_done(last, result_of(last), now=NOW, waits=NO_WAITS)
    assert (move.status, move.step, move.finished_at, move.tells_line) == (JobStatus.COMPLETED, 2, NOW, False)


def test_a_retryable_failure_waits_for_its_backoff_in_the_database_and_keeps_the_error() -> None:
    policy = RetryPolicy(backoff=Backoff(base=5, jitter=0))
    move = transitions.failed(RUNNING, PASSING, policy, now=NOW, randomness=0.5)
    assert (move.status, move.timer_at, move.attempt) == (JobStatus.RETRYING, NOW + 5, 1)
    assert move.failed is not None
    assert (move.failed.attempt, move.failed.started_at, move.failed.error["code"]) == (1, 990.0, "CONNECTION")
    assert move.failed.error["retry_in"] == 5
    assert move.error is not None
    assert "retry_in" not in move.error, "the error belongs to that attempt"


def test_a_backoff_never_outlasts_the_deadline() -> None:
    job = replace(RUNNING, deadline_at=NOW + 1)
    move = transitions.failed(job, PASSING, RetryPolicy(backoff=Backoff(base=60)), now=NOW, randomness=0.5)
    assert move.timer_at == NOW + 1
    assert move.failed is not None
    assert move.failed.error["retry_in"] == 1


def test_a_final_failure_is_a_dead_letter_with_its_attempt() -> None:
    move = transitions.failed(RUNNING, Failure("HTTP_500", "x", False), RetryPolicy(), now=NOW, randomness=0.5)
    assert (move.status, move.retryable, move.finished_at) == (JobStatus.FAILED, False, NOW)
    assert move.failed is not None


def test_a_released_job_keeps_its_attempts() -> None:
    move = transitions.hand_back(RUNNING, now=NOW, waits=NO_WAITS)
    assert (move.status, move.attempt, move.step) == (JobStatus.PENDING, 0, 0)


def test_a_hold_ends_at_the_deadline_of_the_call_or_earlier() -> None:
    job = replace(RUNNING, call_deadline=NOW + 60)

    def until(seconds: float | None) -> float | None:
        hold = hold_of(job, NOW, seconds)
        return None if hold is None else hold.until - NOW

    assert [until(seconds) for seconds in (None, 100.0, 5.0, 0.0)] == [60.0, 60.0, 5.0, None]


def test_recovery_counts_the_call_and_holds_the_slot() -> None:
    hold = Hold("j", "a", None, NOW + 60)
    move = transitions.recover(RUNNING, now=NOW, waits=NO_WAITS, max_attempts=3, hold=hold)
    assert (move.status, move.attempt, move.hold) == (JobStatus.PENDING, 1, hold)
    assert move.failed is not None
    assert move.failed.error["code"] == "WORKER_DIED"


def test_a_job_that_kills_its_workers_is_a_dead_letter_after_its_attempts() -> None:
    poison = replace(RUNNING, attempt=3)
    move = transitions.recover(poison, now=NOW, waits=NO_WAITS, max_attempts=3, hold=None)
    assert (move.status, move.retryable) == (JobStatus.FAILED, False)


def test_a_claim_that_never_started_is_queued_again_without_an_attempt() -> None:
    move = transitions.recover(JOB, now=NOW, waits=NO_WAITS, max_attempts=1, hold=None)
    assert (move.status, move.attempt, move.failed, move.waiting_since) == (JobStatus.PENDING, 0, None, 900.0)


def test_a_scheduled_job_is_queued_when_due_and_a_retry_keeps_its_queueing_time() -> None:
    scheduled = replace(JOB, status=JobStatus.SCHEDULED, queued_at=None)
    assert transitions.due(scheduled, now=NOW, waits=NO_WAITS).queued_at == NOW
    retrying = replace(JOB, status=JobStatus.RETRYING, attempt=2)
    move = transitions.due(retrying, now=NOW, waits=NO_WAITS)
    assert (move.queued_at, move.attempt) == (None, 2)


def test_promotion_moves_one_band_up_and_keeps_the_queueing_time() -> None:
    low = replace(JOB, priority=Priority.LOW, original_priority=Priority.LOW)
    move = transitions.promote(low, now=NOW, waits=NO_WAITS)
    assert (move.priority, move.promoted_at, move.queued_at, move.waiting_since) == (
        Priority.MEDIUM, NOW, None, 900.0,
    )  # fmt: skip


def test_another_priority_keeps_a_waiting_jobs_queueing_time() -> None:
    move = transitions.prioritise(JOB, Priority.HIGH, now=NOW, waits={"a": 500.0})
    assert isinstance(move, Move)
    assert (move.status, move.priority, move.promoted_at, move.queued_at, move.waiting_since, move.timer_at) == (
        JobStatus.PENDING, Priority.HIGH, NOW, None, 900.0, 1_400.0,
    )  # fmt: skip


def test_a_lowered_job_waits_for_promotion_from_now_on() -> None:
    move = transitions.prioritise(JOB, Priority.LOW, now=NOW, waits=NO_WAITS)
    assert (move.priority, move.promoted_at, move.queued_at) == (Priority.LOW, None, NOW)


@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.RETRYING, JobStatus.SCHEDULED])
def test_another_priority_of_a_job_that_is_not_queued_starts_no_new_run(status: JobStatus) -> None:
    job = replace(RUNNING, status=status)
    assert transitions.prioritise(job, Priority.HIGH, now=NOW, waits=NO_WAITS) == Prioritise(
        job.id, job.run, Priority.HIGH, None, NOW
    )


@pytest.mark.parametrize("status", [s for s in JobStatus if s.finished])
def test_a_finished_job_has_no_priority_to_change(status: JobStatus) -> None:
    with pytest.raises(WrongState):
        transitions.prioritise(replace(JOB, status=status), Priority.HIGH, now=NOW, waits=NO_WAITS)


@pytest.mark.parametrize("status", [s for s in JobStatus if not s.finished])
def test_any_unfinished_job_can_be_cancelled(status: JobStatus) -> None:
    move = transitions.cancel(replace(JOB, status=status), now=NOW)
    assert (move.status, move.finished_at) == (JobStatus.CANCELLED, NOW)
    assert move.tells_line is (status in (JobStatus.PENDING, JobStatus.RUNNING)), "its worker may be in another process"


@pytest.mark.parametrize("status", [s for s in JobStatus if s.finished])
def test_a_finished_job_cannot_be_cancelled(status: JobStatus) -> None:
    with pytest.raises(WrongState) as caught:
        transitions.cancel(replace(JOB, status=status), now=NOW)
    assert caught.value.details == {"status": status.value}


def test_resume_begins_a_new_round_at_the_failed_step_and_keeps_the_number_of_calls() -> None:
    move = transitions.resume(FAILED, now=NOW, waits=NO_WAITS)
    assert (move.status, move.step, move.attempt, move.round) == (JobStatus.PENDING, 1, 3, 1)
    assert move.finished_at is None
    assert move.error is None


def test_the_calls_of_a_failed_step_still_count_after_the_re_run_of_another_one() -> None:
    """Otherwise a user could resume a manual retry without end."""
    rerun = transitions.rerun(replace(FAILED, attempt=2), 0, now=NOW, waits=NO_WAITS)
    running = replace(
        FAILED, status=JobStatus.RUNNING, step=0, attempt=1, error=None, retryable=None, goes_back=rerun.goes_back
    )
    done = transitions.step_done(running, result_of(running), now=NOW, waits=NO_WAITS)
    assert (done.status, done.step, done.attempt, done.retryable) == (JobStatus.FAILED, 1, 2, True)


def test_the_time_until_promotion_pauses_while_a_job_is_failed() -> None:
    """Queued at 900, failed at 950: 50 s of waiting count, however late it is resumed."""
    assert transitions.resume(FAILED, now=NOW, waits=NO_WAITS).queued_at == NOW - 50
    assert transitions.requeue(FAILED, now=NOW, waits=NO_WAITS).queued_at == NOW - 50
    never_queued = replace(FAILED, queued_at=None)
    assert transitions.resume(never_queued, now=NOW, waits=NO_WAITS).queued_at == NOW


def test_the_time_until_promotion_restarts_when_a_job_starts_over() -> None:
    assert transitions.requeue(FAILED, now=NOW, waits=NO_WAITS, from_start=True).queued_at == NOW
    assert transitions.rerun(FAILED, 0, now=NOW, waits=NO_WAITS).queued_at == NOW


@pytest.mark.parametrize("job", [replace(FAILED, retryable=False), RUNNING, replace(JOB, status=JobStatus.COMPLETED)])
def test_only_a_retryable_failure_can_be_resumed(job: Job) -> None:
    with pytest.raises(WrongState):
        transitions.resume(job, now=NOW, waits=NO_WAITS)


def test_a_user_can_resume_a_bounded_number_of_times_and_an_operator_any() -> None:
    """Each round keeps its results with the job, and every read of the job returns them all."""
    worn = replace(FAILED, round=MOST_ROUNDS)
    done = replace(worn, status=JobStatus.COMPLETED, retryable=None, error=None)
    for begin in (
        lambda: transitions.resume(worn, now=NOW, waits=NO_WAITS),
        lambda: transitions.rerun(worn, 0, now=NOW, waits=NO_WAITS),
        lambda: transitions.rerun(done, 0, now=NOW, waits=NO_WAITS),
    ):
        with pytest.raises(WrongState, match="submit a new one"):
            begin()
    assert transitions.requeue(worn, now=NOW, waits=NO_WAITS).round == MOST_ROUNDS + 1
    assert transitions.resume(replace(worn, round=MOST_ROUNDS - 1), now=NOW, waits=NO_WAITS).round == MOST_ROUNDS


def test_an_operator_can_requeue_any_failed_job_also_from_the_start() -> None:
    dead = replace(FAILED, retryable=False)
    assert transitions.requeue(dead, now=NOW, waits=NO_WAITS).step == 1
    assert transitions.requeue(dead, now=NOW, waits=NO_WAITS, from_start=True).step == 0


def test_the_timer_releases_due_jobs() -> None:
    for status in (JobStatus.SCHEDULED, JobStatus.RETRYING):
        move = transitions.timer_rang(replace(JOB, status=status, timer_at=NOW), now=NOW, waits=NO_WAITS)
        assert move is not None
        assert move.status is JobStatus.PENDING


def test_a_job_that_waits_too_long_for_capacity_fails_and_can_be_resumed() -> None:
    move = transitions.timer_rang(replace(JOB, timer_at=NOW), now=NOW, waits={"a": 10})
    assert move is not None
    assert (move.status, move.retryable, move.error and move.error["code"]) == (
        JobStatus.FAILED, True, "RESOURCE_EXHAUSTED",
    )  # fmt: skip


def test_a_service_that_resumes_by_itself_queues_the_job_again_after_a_pause() -> None:
    waiting = replace(JOB, attempt=1, timer_at=NOW)
    move = transitions.timer_rang(waiting, now=NOW, waits={"a": 10}, resumes={"a": 60.0})
    assert move is not None
    assert (move.status, move.timer_at, move.attempt, move.round) == (JobStatus.RETRYING, NOW + 60, 1, 0)
    assert move.error is not None
    assert move.error["code"] == "RESOURCE_EXHAUSTED"
    assert move.tells_line, "the dispatcher must forget the step until then"
    assert move.queued_at is None, "the time until promotion goes on"
    soon = transitions.timer_rang(replace(waiting, deadline_at=NOW + 5), now=NOW, waits={"a": 10}, resumes={"a": 60.0})
    assert soon is not None
    assert soon.timer_at == NOW + 5


@pytest.mark.parametrize("status", [s for s in JobStatus if not s.finished])
def test_a_passed_deadline_ends_the_job_in_any_state(status: JobStatus) -> None:
    job = replace(JOB, status=status, timer_at=NOW, deadline_at=NOW)
    move = transitions.timer_rang(job, now=NOW, waits=NO_WAITS)
    assert move is not None
    assert (move.status, move.retryable, move.error and move.error["code"]) == (
        JobStatus.FAILED, False, "DEADLINE_PASSED",
    )  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, timer_at=NOW + 1),
        replace(JOB, timer_at=None),
        replace(JOB, status=JobStatus.COMPLETED, timer_at=NOW),
        replace(RUNNING, timer_at=NOW),
    ],
)
def test_a_stale_timer_does_nothing(job: Job) -> None:
    assert transitions.timer_rang(job, now=NOW, waits=NO_WAITS) is None


def test_within_a_user_retries_precede_jobs_in_progress_and_those_precede_new_ones() -> None:
    ranks = [replace(JOB, attempt=1).rank, replace(JOB, step=1).rank, JOB.rank]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 3


def test_the_idempotency_key_is_the_same_for_all_attempts_and_changes_with_the_round() -> None:
    assert replace(JOB, attempt=1).idempotency_key == replace(JOB, attempt=2).idempotency_key
    assert replace(JOB, round=1).idempotency_key != JOB.idempotency_key
    assert replace(JOB, step=1).idempotency_key != JOB.idempotency_key


def test_a_spared_rejection_costs_no_attempt_and_the_next_one_does() -> None:
    policy = RetryPolicy(max_attempts=2, backoff=Backoff(base=2, jitter=0))
    busy = Failure("HTTP_503", "busy", retryable=True)
    running = RUNNING
    for refusals in range(1, MOST_SPARED + 1):
        move = transitions.failed(running, busy, policy, now=NOW, randomness=0.5, spare=True)
        assert (move.status, move.attempt) == (JobStatus.RETRYING, 0)
        assert move.error is not None
        assert move.error["refusals"] == refusals
        assert move.failed is not None
        running = replace(RUNNING, error=move.error)
    move = transitions.failed(running, busy, policy, now=NOW, randomness=0.5, spare=True)
    assert (move.status, move.attempt) == (JobStatus.RETRYING, 1)
    last = replace(RUNNING, attempt=2, error=move.error)
    assert transitions.failed(last, busy, policy, now=NOW, randomness=0.5).status is JobStatus.FAILED
