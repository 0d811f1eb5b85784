"""The traceback of a handler: kept with the attempt, shown to those who operate the service, and logged."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead, JobFailed
from fairlead.errors import Permanent
from fairlead.executors.call_outcome import (
    LONGEST,
    LONGEST_TRACEBACK,
    MOST_FRAMES,
    failure_of,
    shortened,
    traceback_of,
)
from tests.integration.gateway_site import Site

PATIENCE = 30.0
IN_PROCESS = {"limit": 1, "function": "tests.integration.handlers:odd", "run_in": "process", "max_attempts": 1}


def draw(prompt: str) -> None:
    raise ValueError(f"cannot draw {prompt}")


async def on_loop(call: Call) -> None:
    draw(call.params["prompt"])


def in_thread(call: Call) -> None:
    draw(call.params["prompt"])


@pytest.mark.parametrize("handler", [on_loop, in_thread])
async def test_the_traceback_of_a_handler_is_kept_and_raised_as_a_note(
    handler: Callable[[Call], Any], engines: dict[str, str]
) -> None:
    app = Fairlead(Config(), **engines)
    app.service("draw", limit=1, max_attempts=1)(handler)
    async with app.running():
        job = await app.submit("draw", {"prompt": "a harbour"}, user_id="ada")
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        (attempt,) = (await job.get()).attempts or []
    trace = attempt["traceback"]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert trace.endswith("ValueError: cannot draw a harbour")
    assert [name for name in (handler.__name__, "draw") if f"in {name}\n" in trace] == [handler.__name__, "draw"]
    assert "executors" not in trace, "the way to the handler is ours"
    assert "traceback" not in attempt["error"]
    assert "traceback" not in caught.value.error
    (note,) = caught.value.__notes__
    assert trace in note


async def test_a_handler_in_a_process_has_its_traceback_too(embedded: dict[str, str]) -> None:
    app = Fairlead(Config.model_validate({"services": {"odd": IN_PROCESS}}), **embedded)
    async with app.running():
        job = await app.submit("odd", {"kind": "exit"}, user_id="ada")
        await app.wait(job.id, PATIENCE)
        (attempt,) = (await job.get()).attempts or []
    assert "in odd\n" in attempt["traceback"]
    assert attempt["traceback"].endswith("SystemExit: 3")


async def test_every_attempt_is_logged_as_a_warning_and_the_end_as_a_message(
    embedded: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fairlead.jobs")
    app = Fairlead(Config(), **embedded)

    @app.service(limit=1, max_attempts=2, backoff=[0.01])
    async def broken(call: Call) -> None:
        draw("a secret")

    @app.service(limit=1)
    async def fine(call: Call) -> str:
        return "ok"

    async with app.running():
        failed = await app.submit("broken", user_id="private-name")
        done = await app.submit("fine", user_id="private-name")
        for job in (failed, done):
            await app.wait(job.id, PATIENCE)
    records = [record for record in caplog.records if record.name == "fairlead.jobs"]
    first, last, ended = (record for record in records if failed.id in record.getMessage())
    assert (first.levelname, last.levelname, ended.levelname) == ("WARNING", "WARNING", "INFO")
    assert "call 1 of broken failed: EXCEPTION: ValueError: cannot draw a secret; retry in 0.01 s" in first.getMessage()
    assert "    ValueError: cannot draw a secret" in (first.stack_info or "")
    assert f"job {failed.id} (broken): FAILED after " in ended.getMessage()
    (completed,) = (record for record in records if done.id in record.getMessage())
    assert f"job {done.id} (fine): COMPLETED after " in completed.getMessage()
    assert "private-name" not in caplog.text


async def test_users_do_not_see_tracebacks_and_operators_do(make_site: Callable[..., Awaitable[Site]]) -> None:
    site = await make_site(admin_key="k" * 32)

    async def read(key: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key}"}
        job: dict[str, Any] = (await site.client.get(f"/api/v1/jobs/{job_id}", headers=headers)).json()
        snapshot = (await site.client.get(f"/api/v1/jobs/{job_id}/events", headers=headers)).text
        assert "Traceback" not in snapshot
        return job

    job_id = (await site.app.submit("broken", user_id="ada")).id
    await site.app.wait(job_id, PATIENCE)
    for role, sees in {"admin": True, "service": True, "viewer": True, "user": False}.items():
        owner = {"user_id": "ada"} if role == "user" else {}
        (*_, attempt) = (await read((await site.app.create_key(role, **owner)).text))["attempts"]
        assert (attempt["traceback"] is not None) is sees, role


def test_a_traceback_can_be_stored_whatever_the_text() -> None:
    try:
        draw("caf\udce9")
    except ValueError as error:
        trace = traceback_of(error)
    assert trace is not None
    assert trace.endswith("cannot draw caf?")


async def test_a_failure_while_waiting_has_no_traceback_of_an_earlier_call(embedded: dict[str, str]) -> None:
    app = Fairlead(Config(), **embedded)

    @app.service(limit=1, backoff=[60])
    async def broken(call: Call) -> None:
        draw("a harbour")

    async with app.running():
        job = await app.submit("broken", user_id="ada", deadline=1)
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
    assert caught.value.error["code"] == "DEADLINE_PASSED"
    assert getattr(caught.value, "__notes__", []) == []


def test_a_traceback_is_bounded_and_has_no_locals() -> None:
    def deep(depth: int, secret: str) -> None:
        if depth:
            deep(depth - 1, secret)
        raise Permanent("x" * 100_000)

    try:
        deep(200, "hunter2")
    except Permanent as error:
        trace = traceback_of(error)
    assert trace is not None
    assert len(trace) <= LONGEST_TRACEBACK
    assert trace.count("in deep") <= MOST_FRAMES
    assert "hunter2" not in trace.replace('deep(200, "hunter2")', "")
    assert "characters ...]" in trace


@pytest.mark.parametrize("before", range(LONGEST_TRACEBACK // 2 - 220, LONGEST_TRACEBACK // 2, 20))
def test_a_url_at_the_cut_of_a_traceback_shows_no_password(before: int) -> None:
    trace = shortened("x" * before + " postgresql://ada:" + "hunter2" * 20 + "@db.example/jobs " + "y" * 20_000)
    assert "characters ...]" in trace
    assert "hunter2" not in trace


@pytest.mark.parametrize("before", [LONGEST - 100, LONGEST - 30])
def test_a_url_at_the_end_of_a_long_message_shows_no_password(before: int) -> None:
    failure = failure_of(ValueError("x" * before + " postgresql://ada:" + "hunter2" * 20 + "@db.example/jobs"))
    assert "hunter2" not in failure.as_error()["message"]
