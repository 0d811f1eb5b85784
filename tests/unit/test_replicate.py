"""The pure parts of the Replicate front: statuses, durations, logs, and streams that continue."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.domain import replicate
from fairlead.domain.job import JobStatus
from fairlead.domain.output import Position
from fairlead.domain.replicate import Diverged, Mark, Received, Resumption
from fairlead.domain.retry import DEADLINE_PASSED
from fairlead.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("5M", 300), ("1h30m45s", 5445), ("1h 5s", 3605), ("168h", 604800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert replicate.cancel_after(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "4s", "0", "-5s", "1d", "169h", "5s5m", "1e3", "five", "9999999", "٣٠s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        replicate.cancel_after(text)


def test_statuses() -> None:
    assert replicate.status_of(JobStatus.SCHEDULED, None, started=False) == "starting"
    assert replicate.status_of(JobStatus.PENDING, None, started=False) == "starting"
    assert replicate.status_of(JobStatus.PENDING, None, started=True) == "processing"
    assert replicate.status_of(JobStatus.RETRYING, None, started=True) == "processing"
    assert replicate.status_of(JobStatus.FAILED, {"code": "PERMANENT"}, started=True) == "failed"
    assert replicate.status_of(JobStatus.FAILED, {"code": DEADLINE_PASSED}, started=True) == "canceled"
    assert replicate.status_of(JobStatus.CANCELLED, None, started=False) == "canceled"


def test_progress_is_a_bar_that_the_clients_parse() -> None:
    assert replicate.progress_lines({"fraction": 0.76, "message": "step 38"}) == "step 38\n 76%|#######   | 76/100\n"
    assert replicate.progress_lines({"fraction": 1}) == "100%|##########| 100/100\n"
    assert replicate.progress_lines({"other": 1}) == replicate.progress_lines(None) == ""


@pytest.mark.parametrize("metadata", [None, {}, {"replicate": 3}, {"replicate": {"model": 1, "url": []}}])
def test_a_job_that_came_another_way_has_no_mark(metadata: Any) -> None:
    assert Mark.of(metadata) == Mark()


def test_a_mark_is_read_back() -> None:
    mark = Mark("acme/flux", "0" * 64, "http://localhost/replicate/v1")
    assert Mark.of({"other": 1, **mark.as_metadata()}) == mark


def taken(stream: Resumption, *texts: str, run: int = 1) -> list[str]:
    return [stream.take(text, Position(run, number)) for number, text in enumerate(texts)]


def test_a_client_continues_where_it_stopped() -> None:
    first = Resumption(Received())
    assert taken(first, "ab", "", "c") == ["ab", "", "c"]
    second = Resumption(Received.parse(str(first.received)))
    assert second.received == first.received
    assert second.take("d", Position(1, 3)) == "d"
    whole = Resumption(Received())
    taken(whole, "abc", "d")
    assert second.received.checksum == whole.received.checksum


@pytest.mark.parametrize("again", [("ab", "cde"), ("abcde",), ("a", "b", "c", "de"), ("abc", "de")])
def test_output_that_begins_again_goes_on_if_it_is_the_same(again: tuple[str, ...]) -> None:
    stream = Resumption(Received())
    taken(stream, "ab", "c")
    resumed = Resumption(Received.parse(str(stream.received)))
    for each in (stream, resumed):
        each.restart()
        assert "".join(taken(each, *again, run=2)) == "de"
        each.finish()
        assert each.received.position == Position(2, len(again) - 1)


@pytest.mark.parametrize("again", [("abx",), ("ab", "d"), ("xbc",), ("abdc", "x")])
def test_other_output_is_noticed(again: tuple[str, ...]) -> None:
    stream = Resumption(Received())
    taken(stream, "abc")
    stream.restart()
    with pytest.raises(Diverged):
        taken(stream, *again, run=2)


def test_shorter_output_is_noticed_at_the_end() -> None:
    stream = Resumption(Received())
    taken(stream, "abc")
    stream.restart()
    assert taken(stream, "ab", run=2) == [""]
    with pytest.raises(Diverged):
        stream.finish()


def test_a_restart_before_the_first_output_changes_nothing() -> None:
    stream = Resumption(Received())
    stream.restart()
    assert taken(stream, "ab", run=2) == ["ab"]


@pytest.mark.parametrize("text", ["", "2-0", "2-0.5", "2-0.5.xyz", "a-0.5.1", "2-0.-5.1", "2-0.5.123456789", "end"])
def test_other_event_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        Received.parse(text)


def test_events_of_webhooks() -> None:
    ends = ("job.completed", "job.failed", "job.cancelled")
    assert replicate.webhook_events(None) == ("job.started", *ends)
    assert replicate.webhook_events(["completed"]) == ends
    assert replicate.webhook_events(["output", "start"]) == ("job.started", "job.completed")
    assert replicate.webhook_events(["logs"]) == ()
