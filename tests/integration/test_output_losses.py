"""The output of steps when the log that keeps it is away or loses its data, and in processes without a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Config, Fairlead, JobHandle, JobStatus, Restart
from fairlead.app import output_stream
from fairlead.dispatch.output_log import Appended, OutputLog
from fairlead.domain.output import Position
from fairlead.engine import output_writer
from fairlead.errors import Unavailable
from tests.integration.talker import PATIENCE, Reader, Talker, read_data

MakeApp = Callable[..., Fairlead]


@pytest.fixture
def make_app(engines: dict[str, str]) -> MakeApp:
    def make(**sections: Any) -> Fairlead:
        return Fairlead(Config.model_validate(sections), **engines)

    return make


class Broken:
    """An output log that cannot be reached."""

    def __init__(self, log: OutputLog) -> None:
        self.log = log
        self.works = False

    async def append(self, entries: Any) -> Any:
        return await self.log.append(entries) if self.works else [Appended.FAILED] * len(entries)

    async def read(self, job_id: str, since: Position | None = None) -> Any:
        if not self.works:
            raise Unavailable("the log cannot be reached")
        return await self.log.read(job_id, since)

    async def close(self) -> None:
        await self.log.close()


async def test_a_late_reader_gets_the_whole_result_if_the_log_is_away(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        log = app._runtime.output_log
        job = await app.submit("talk")
        talker.say("a", "b")
        reader = Reader(app, job.id)
        await reader.until(2)
        app._runtime.output_log = Broken(log)
        talker.say("c", None)
        assert await reader.ended() == ["a", "b", "c"]
        assert await read_data(app, job.id) == ["abc"]
        assert await read_data(app, job.id, reader.chunks[0].position) == [Restart(0), "abc"]
        assert await read_data(app, job.id, reader.chunks[2].position) == []
        app._runtime.output_log = log


async def test_what_the_log_did_not_take_is_appended_when_it_is_back(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_writer, "RETRY_EVERY", 0.01)
    app = make_app()
    talker = Talker(app)
    async with app.running():
        assert app._runtime._outputs is not None
        log = app._runtime._outputs._log = Broken(app._runtime.output_log)
        job = await app.submit("talk")
        talker.say("a", "b")
        reader = Reader(app, job.id)
        log.works = True
        await reader.until(2)
        talker.say("c", None)
        assert await reader.ended() == ["a", "b", "c"]
        assert await read_data(app, job.id) == ["a", "b", "c"]


async def empty(app: Fairlead) -> None:
    """Lose all data of the log."""
    log = app._runtime.output_log
    if hasattr(log, "_jobs"):
        log._jobs.clear()
    else:
        await log._client.on_any([("FLUSHALL",)])  # type: ignore[attr-defined]


async def test_a_log_that_loses_its_data_gets_it_again_while_the_step_runs(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        job = await app.submit("talk")
        talker.say("a", "b")
        reader = Reader(app, job.id)
        await reader.until(2)
        await empty(app)
        talker.say("c")
        await reader.until(3)
        late = Reader(app, job.id)
        await late.until(3)
        talker.say(None)
        assert await reader.ended() == await late.ended() == ["a", "b", "c"]


async def test_data_lost_at_the_end_means_one_restart_and_the_whole_text(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        job = await app.submit("talk")
        talker.say("a", "b", "c", None)
        reader = Reader(app, job.id)
        assert await reader.ended() == ["a", "b", "c"]
        await empty(app)
        assert await read_data(app, job.id, reader.chunks[1].position) == [Restart(0), "abc"]
        assert await read_data(app, job.id, reader.chunks[2].position) == []
        assert await read_data(app, job.id) == ["abc"]


async def test_chunks_that_are_not_text_are_replayed_one_by_one_from_the_result(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        job = await app.submit("talk")
        talker.say({"a": 1}, {"b": 2}, None)
        await job.result(PATIENCE)
        await empty(app)
        assert await read_data(app, job.id) == [{"a": 1}, {"b": 2}]


async def test_an_app_without_a_node_reads_the_output(
    distributed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_stream, "POLL_WITHOUT_NODE", 0.02)
    app = Fairlead(Config(), **distributed)
    talker = Talker(app)
    async with app.running(), Fairlead(app._declarations.config, **distributed) as reads:
        job: JobHandle = await app.submit("talk")
        reader = Reader(reads, job.id)
        talker.say("a")
        await reader.until(1)
        talker.say("b", None)
        assert await reader.ended() == ["a", "b"]
        assert (await reads.get(job.id)).status is JobStatus.COMPLETED
