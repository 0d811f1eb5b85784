"""Misbehaving handlers: in every case the job ends, the slot is freed, and the process survives."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import Call, Config, Fairlead, JobFailed, JobStatus
from fairlead.engine import worker
from fairlead.engine.step_run import OutcomeMapper

PATIENCE = 30.0


class Odd(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


RAISED: dict[str, Callable[[], BaseException]] = {
    "base": lambda: Odd("x"),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "generator": lambda: GeneratorExit(),
    "iteration": lambda: StopIteration(3),
    "unprintable": Unprintable,
    "surrogate": lambda: ValueError("bad \ud800 text"),
}


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., Fairlead]:
    def make(**sections: Any) -> Fairlead:
        return Fairlead(Config.model_validate(sections), database_url=f"sqlite:///{tmp_path}/fairlead.db")

    return make


async def free_slots(app: Fairlead) -> int:
    """Wait until the slot of an ended job is returned, which the next exchange does."""
    async with asyncio.timeout(PATIENCE):
        while (service := (await app.status())["services"][0])["in_use"]:
            await asyncio.sleep(0.01)
    return int(service["limit"])


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_any_exception_of_a_handler_fails_its_job_and_frees_its_slot(
    make_app: Callable[..., Fairlead], kind: str, where: str
) -> None:
    app = make_app()
    if where == "loop":

        @app.service("odd", limit=1, max_attempts=1)
        async def on_loop(call: Call) -> None:
            raise RAISED[kind]()
    else:

        @app.service("odd", limit=1, max_attempts=1)
        def in_thread(call: Call) -> None:
            raise RAISED[kind]()

    async with app.running():
        job = await app.submit("odd")
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        assert caught.value.error["code"] == "EXCEPTION"
        assert await free_slots(app) == 1


async def test_a_handler_that_ignores_its_cancellation_does_not_delay_its_job(
    make_app: Callable[..., Fairlead], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STUBBORN_AFTER", 0.1)
    app = make_app()
    gate = asyncio.Event()

    @app.service(limit=1, timeout=0.2, max_attempts=1)
    async def stubborn(call: Call) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    async with app.running():
        job = await app.submit("stubborn")
        with pytest.raises(JobFailed) as caught:
            await job.result(timeout=PATIENCE)
        assert caught.value.error["code"] == "TIMEOUT"
        assert (await app.status())["services"][0]["in_use"] == 1, "it is still running"
        gate.set()
        assert await free_slots(app) == 1


async def test_an_internal_error_during_a_step_is_left_to_recovery(
    make_app: Callable[..., Fairlead], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, failing = make_app(), [True]
    really = OutcomeMapper.move_of

    def move_of(self: OutcomeMapper, *about: Any) -> Any:
        if failing and failing.pop():
            raise RuntimeError("ours")
        return really(self, *about)

    monkeypatch.setattr(OutcomeMapper, "move_of", move_of)

    @app.service(limit=1, max_attempts=2, lease_ttl=1.0)
    async def one(call: Call) -> int:
        return call.attempt

    async with app.running():
        job = await app.submit("one")
        assert await job.result(timeout=PATIENCE) == 2, "its lease expired, and it was retried"
        await app.drain()
        assert await free_slots(app) == 1


async def test_a_call_in_a_process_is_stopped(make_app: Callable[..., Fairlead], tmp_path: Path) -> None:
    service = {"limit": 1, "function": "tests.integration.handlers:endless", "run_in": "process", "timeout": 600}
    app = make_app(services={"endless": service})
    async with app.running():
        job = await app.submit("endless", {"entered": str(tmp_path / "pid")})
        async with asyncio.timeout(PATIENCE):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.02)
        pid = int((tmp_path / "pid").read_text())
        await job.cancel()
        assert await free_slots(app) == 1
        async with asyncio.timeout(PATIENCE):
            while alive(pid):
                await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"


@pytest.mark.parametrize(("kind", "code"), [("exit", "EXCEPTION"), ("die", "WORKER_DIED"), ("set", "BAD_RESULT")])
async def test_errors_in_a_process_are_reported(make_app: Callable[..., Fairlead], kind: str, code: str) -> None:
    service = {
        "limit": 1,
        "function": "tests.integration.handlers:odd",
        "run_in": "process",
        "max_attempts": 1,
    }
    async with make_app(services={"odd": service}).running() as app:
        with pytest.raises(JobFailed) as caught:
            await (await app.submit("odd", {"kind": kind})).result(timeout=PATIENCE)
        assert caught.value.error["code"] == code
        assert await (await app.submit("odd", {"kind": "fine"})).result(timeout=PATIENCE) == "fine"


async def test_a_raised_limit_applies_to_plain_functions_too(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()
    inside, all_in = threading.Semaphore(0), threading.Event()

    @app.service(limit=1)
    def waits(call: Call) -> str:
        inside.release()
        assert all_in.wait(PATIENCE)
        return "ok"

    async with app.running():
        await app.set_limit("waits", 3)
        jobs = [await app.submit("waits") for _ in range(3)]
        for _ in range(3):
            assert await asyncio.to_thread(inside.acquire, timeout=PATIENCE)
        all_in.set()
        for job in jobs:
            assert await job.result(timeout=PATIENCE) == "ok"


async def test_submits_and_cancels_of_another_process_reach_the_running_queue(
    make_app: Callable[..., Fairlead],
) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    def build() -> Fairlead:
        app = make_app()

        @app.service(limit=1)
        async def endless(call: Call) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        return app

    async with build().running() as app, build() as other:
        job = await app.submit("endless")
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await other.pause("endless")
        assert (await other.cancel(job.id)).status is JobStatus.CANCELLED
        await asyncio.wait_for(stopped.wait(), PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while not (await app.status())["services"][0]["paused"]:
                await asyncio.sleep(0.05)


async def test_a_job_of_a_removed_service_waits_until_the_service_is_back(
    make_app: Callable[..., Fairlead], caplog: pytest.LogCaptureFixture
) -> None:
    def build(*names: str) -> Fairlead:
        app = make_app()
        for name in names:

            @app.service(name, limit=1)
            async def work(call: Call) -> str:
                return call.service

        return app

    async with build("kept", "gone") as app:
        job = await app.submit("gone")
    async with build("kept").running() as app:
        await (await app.submit("kept")).result(timeout=PATIENCE)
        # Its queue is built at the next tick, once the relay has offered the job.
        async with asyncio.timeout(PATIENCE):
            while "jobs wait for the service gone" not in caplog.text:
                await asyncio.sleep(0.05)
        assert (await app.get(job.id)).status is JobStatus.PENDING
    async with build("kept", "gone").running() as app:
        assert (await app.wait(job.id, PATIENCE)).result == "gone"


def test_a_script_with_the_synchronous_facade_exits_cleanly(tmp_path: Path) -> None:
    script = """
        from fairlead import Fairlead
        app = Fairlead()
        @app.service(limit=1)
        def one(call): return 1
        print(app.sync.submit("one", {}, user_id="u").id)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_thread_that_never_ends_does_not_block_the_exit(tmp_path: Path) -> None:
    script = """
        import asyncio, threading
        from fairlead import Fairlead
        app = Fairlead()
        begun = threading.Event()
        @app.service(limit=1)
        def forever(call):
            begun.set()
            threading.Event().wait()
        async def main():
            async with app.running():
                await app.submit("forever")
                await asyncio.to_thread(begun.wait)
        asyncio.run(main())
        print("left")
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr
