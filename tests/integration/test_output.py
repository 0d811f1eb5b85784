"""The output of steps while they run, on both pairs of engines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from fairlead import Call, Chunk, Config, Fairlead, JobFailed, NotFound, Restart, Retry
from fairlead.app import output_stream
from fairlead.domain.output import Entry
from fairlead.engine import events, output_writer
from fairlead.engine.events import SlowConsumer
from fairlead.errors import InvalidInput
from tests.integration.talker import PATIENCE, Reader, Talker, collect, read, read_data

MakeApp = Callable[..., Fairlead]


@pytest.fixture
def make_app(engines: dict[str, str]) -> MakeApp:
    def make(**sections: Any) -> Fairlead:
        return Fairlead(Config.model_validate(sections), **engines)

    return make


@pytest.fixture
def embedded_app(embedded: dict[str, str]) -> MakeApp:
    def make(**sections: Any) -> Fairlead:
        return Fairlead(Config.model_validate(sections), **embedded)

    return make


# ------------------------------------------------------------ producing


async def test_a_large_chunk_is_kept_in_the_object_store(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the log, nor a message to readers in other processes, has its text."""
    monkeypatch.setattr(output_stream, "POLL_MOST", 3600.0)  # messages wake the reader
    app, gate = make_app(artifacts={"url": str(tmp_path / "files")}), asyncio.Event()
    large = "ü" * 3_000_000
    sent: list[Entry] = []

    @app.service(limit=1)
    async def talk(call: Call) -> AsyncIterator[str]:
        yield "small"
        yield large
        yield "last"
        await gate.wait()

    async with app.running():
        publish = app._runtime.hub.publish_output
        app._runtime.hub.publish_output = lambda entry: (sent.append(entry), publish(entry))[1]  # type: ignore[method-assign]
        job = await app.submit("talk", {})
        for _ in range(2):  # live, and then from the log
            async with asyncio.timeout(PATIENCE), aclosing(app.output(job.id)) as output:
                chunks = [(await anext(output)).data for _ in range(3)]  # type: ignore[union-attr]
            assert chunks == ["small", large, "last"]
        kept = await app._runtime.output_log.read(job.id)
        assert max(len(text) for entry in (*kept, *sent) for text in entry.chunks) < 100
        assert [entry.stored is not None for entry in kept].count(True) == 1
        (stored,) = (entry.stored for entry in kept if entry.stored is not None)
        await app.files.delete(stored)  # as the sweep does later
        async with asyncio.timeout(PATIENCE), aclosing(app.output(job.id)) as output:
            first = await anext(output)
            gate.set()
            rest = [each async for each in output]
        assert isinstance(first, Chunk)
        assert isinstance(rest[0], Restart)
        assert "".join(each.data for each in rest if isinstance(each, Chunk)) == f"small{large}last"
        assert await job.result(PATIENCE) == f"small{large}last"


async def test_an_async_generator_emits_what_it_yields(make_app: MakeApp) -> None:
    app = make_app()

    @app.service(limit=1)
    async def talk(call: Call) -> AsyncIterator[str]:
        for word in call.params["words"]:
            yield word

    async with app.running():
        job = await app.submit("talk", {"words": ["a ", "", "ü ", "c"]})
        assert [str(each) async for each in job.stream()] == ["a ", "ü ", "c"]
        assert await job.result(PATIENCE) == "a ü c"
        view = await job.get()
        assert view.context is not None
        assert view.context["step_0_talk"]["metrics"]["output_chunks"] == 3


async def test_a_generator_in_a_thread_emits_what_it_yields_and_may_return_its_result(embedded_app: MakeApp) -> None:
    app = embedded_app()

    @app.service(limit=1)
    def talk(call: Call) -> Iterator[Any]:
        yield {"token": 1}
        yield "two"
        return call.params.get("result")

    async with app.running():
        job, other = await app.submit("talk"), await app.submit("talk", {"result": {"tokens": 2}})
        assert await job.result(PATIENCE) == [{"token": 1}, "two"]
        assert await other.result(PATIENCE) == {"tokens": 2}
        assert await read_data(app, other.id) == [{"token": 1}, "two"]


async def test_a_wrapped_generator_is_a_generator(embedded_app: MakeApp) -> None:
    app = embedded_app()

    async def words(call: Call) -> AsyncIterator[str]:
        yield "one "
        yield "two"

    app.service("wrapped", limit=1)(lambda call: words(call))
    app.service("wrapped_in_thread", limit=1)(lambda call: (word for word in ("one ", "two")))
    async with app.running():
        for service in ("wrapped", "wrapped_in_thread"):
            assert await (await app.submit(service)).result(PATIENCE) == "one two"


async def test_a_generator_without_chunks_has_the_empty_text_as_its_result(embedded_app: MakeApp) -> None:
    app = embedded_app()

    @app.service(limit=1)
    async def silent(call: Call) -> AsyncIterator[str]:
        for word in ():
            yield word

    async with app.running():
        job = await app.submit("silent")
        assert await job.result(PATIENCE) == ""
        assert await read_data(app, job.id) == []


async def test_threads_emit_in_one_order(make_app: MakeApp) -> None:
    """Every reader, and the result, has the chunks of all threads in the same order, each thread's in its own."""
    app = make_app()

    @app.service(limit=1)
    def talk(call: Call) -> None:
        def emit(name: int) -> None:
            for number in range(200):
                call.emit([name, number])

        threads = [threading.Thread(target=emit, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async with app.running():
        job = await app.submit("talk")
        one, other = await asyncio.gather(read_data(app, job.id), read_data(app, job.id))
        assert one == other == await job.result(PATIENCE)
        for name in range(4):
            assert [number for by, number in one if by == name] == list(range(200))


async def test_a_process_emits(embedded_app: MakeApp) -> None:
    functions = {"emitting": "emits", "yielding": "yields", "yielding_async": "yields_async"}
    services = {
        name: {"limit": 1, "run_in": "process", "function": f"tests.integration.handlers:{function}"}
        for name, function in functions.items()
    }
    async with embedded_app(services=services).running() as app:
        for name in functions:
            job = await app.submit(name, {"words": ["one ", "two"]})
            assert await read_data(app, job.id) == ["one ", "two"], name
            assert await job.result(PATIENCE) == "one two"


async def test_a_chunk_that_is_not_json_is_an_error_in_the_handler(embedded_app: MakeApp) -> None:
    app = embedded_app()

    @app.service(limit=1, max_attempts=1)
    async def talk(call: Call) -> None:
        call.emit(object())

    async with app.running():
        with pytest.raises(JobFailed, match="a chunk must be text or JSON"):
            await (await app.submit("talk")).result(PATIENCE)


@pytest.mark.parametrize("catches", [False, True])
async def test_an_output_larger_than_a_result_fails_the_step(embedded_app: MakeApp, catches: bool) -> None:
    app = embedded_app(worker={"max_result": 2000})

    @app.service(limit=1)
    def talk(call: Call) -> None:
        try:
            for _ in range(100):
                call.emit("x" * 100)
        except Exception:
            if not catches:
                raise

    async with app.running():
        job = await app.submit("talk")
        with pytest.raises(JobFailed) as caught:
            await job.result(PATIENCE)
        assert caught.value.error["code"] == "BAD_RESULT"
        assert (await job.get()).retryable is False
        assert "".join(await read_data(app, job.id)) == "x" * 1900


async def test_too_many_chunks_fail_the_step(embedded_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.executors.port.MAX_CHUNKS", 10)
    app = embedded_app()

    @app.service(limit=1)
    async def talk(call: Call) -> AsyncIterator[int]:
        for number in range(11):
            yield number

    async with app.running():
        job = await app.submit("talk")
        with pytest.raises(JobFailed, match="too large"):
            await job.result(PATIENCE)


async def test_a_cancelled_generator_in_a_thread_ends_at_its_next_chunk(embedded_app: MakeApp) -> None:
    app = embedded_app()
    closed, go_on = threading.Event(), threading.Event()

    @app.service(limit=1)
    def talk(call: Call) -> Iterator[int]:
        try:
            yield 0
            go_on.wait(PATIENCE)
            while True:
                yield 1
        finally:
            closed.set()

    async with app.running():
        job = await app.submit("talk")
        reader = Reader(app, job.id)
        await reader.until(1)
        await job.cancel()
        go_on.set()
        assert await asyncio.to_thread(closed.wait, PATIENCE)
        assert (await reader.ended())[0] == 0


async def test_a_job_without_output_leaves_nothing_behind(make_app: MakeApp) -> None:
    app = make_app()

    @app.service(limit=1)
    async def quiet(call: Call) -> int:
        return 1

    async with app.running():
        job = await app.submit("quiet")
        assert await read_data(app, job.id) == []
        view = await job.get()
        assert view.context is not None
        assert list(view.context["step_0_quiet"]["metrics"]) == ["execution_time_ms"]


# ------------------------------------------------------------ reading


async def test_chunks_arrive_while_the_step_runs(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        job = await app.submit("talk")
        early = Reader(app, job.id)
        for count, word in enumerate(("one", {"two": 2}, "three"), 1):
            talker.say(word)
            await early.until(count)
        late = Reader(app, job.id)
        await late.until(3)
        talker.say("four", None)
        assert await early.ended() == await late.ended() == ["one", {"two": 2}, "three", "four"]
        assert [chunk.position.sequence for chunk in early.chunks] == [0, 1, 2, 3]
        assert {(chunk.attempt, chunk.step_index) for chunk in early.chunks} == {(1, 0)}


async def test_a_reader_continues_after_a_position(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        job = await app.submit("talk")
        first = Reader(app, job.id)
        talker.say("a", "b", "c")
        await first.until(3)
        second = Reader(app, job.id, str(first.chunks[1].position))
        await second.until(1)
        talker.say("d", None)
        assert await second.ended() == ["c", "d"]
        assert await first.ended() == ["a", "b", "c", "d"]
        assert await read_data(app, job.id, first.chunks[2].position) == ["d"]
        assert await read_data(app, job.id, first.chunks[3].position) == []
        assert await read_data(app, job.id) == ["a", "b", "c", "d"]


async def test_a_retry_restarts_the_output_once(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        job = await app.submit("talk")
        reader = Reader(app, job.id)
        talker.say("a", "b")
        await reader.until(2)
        talker.say(Retry(0), "A", "B", None)
        assert await reader.ended() == ["a", "b", Restart(0), "A", "B"]
        assert [chunk.attempt for chunk in reader.chunks] == [1, 1, 2, 2]
        assert reader.chunks[0].position < reader.chunks[2].position
        # Those who come later get only what counts; those who saw the first attempt discard it.
        assert await read_data(app, job.id) == ["A", "B"]
        assert await read_data(app, job.id, reader.chunks[0].position) == [Restart(0), "A", "B"]
        assert await read_data(app, job.id, reader.chunks[2].position) == ["B"]


async def test_a_retry_without_output_voids_the_output_before(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        job = await app.submit("talk")
        reader = Reader(app, job.id)
        talker.say("a")
        await reader.until(1)
        talker.say(Retry(0), None)
        assert await reader.ended() == ["a", Restart(0)]


async def test_a_failed_job_keeps_the_output_that_it_had(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app, max_attempts=1)
    async with app.running():
        job = await app.submit("talk")
        talker.say("a", ValueError("no"))
        chunks: list[Chunk] = []
        with pytest.raises(JobFailed):
            await collect(job.stream(), chunks)
        assert list(map(str, chunks)) == ["a"]


async def test_steps_follow_each_other_without_a_restart(make_app: MakeApp) -> None:
    app = make_app()

    @app.service(limit=1)
    async def first(call: Call) -> AsyncIterator[str]:
        yield "one "
        yield "two "

    @app.service(limit=1)
    async def second(call: Call) -> AsyncIterator[str]:
        yield call.result_of("first")
        yield "three"

    app.pipeline("both", ["first", "second"])
    async with app.running():
        job = await app.submit("both")
        reader = Reader(app, job.id)
        assert await reader.ended() == ["one ", "two ", "one two ", "three"]
        assert [chunk.step_index for chunk in reader.chunks] == [0, 0, 1, 1]
        for number, chunk in enumerate(reader.chunks):
            rest = ["one ", "two ", "one two ", "three"][number + 1 :]
            assert await read_data(app, job.id, chunk.position) == rest


async def test_an_unknown_position_begins_again(make_app: MakeApp) -> None:
    app = make_app()
    talker = Talker(app)
    async with app.running():
        job = await app.submit("talk")
        talker.say("a", "b", None)
        await job.result(PATIENCE)
        for unknown in ("0-5", "999-0"):
            assert await read_data(app, job.id, unknown) == [Restart(0), "a", "b"]
        with pytest.raises(InvalidInput):
            await read(app, job.id, "nonsense")
        with pytest.raises(NotFound):
            await read(app, "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10")


async def test_a_heartbeat_while_there_is_no_output(embedded_app: MakeApp) -> None:
    app = embedded_app()
    talker = Talker(app)
    async with app.running(), aclosing(app.output((await app.submit("talk")).id, heartbeat=0.01)) as output:
        async with asyncio.timeout(PATIENCE):
            assert await anext(output) is None
            assert await anext(output) is None
            talker.say("a")
            while (each := await anext(output)) is None:
                pass
            assert str(each) == "a"


async def test_threads_read_the_output(embedded_app: MakeApp) -> None:
    app = embedded_app()

    @app.service(limit=1)
    async def talk(call: Call) -> AsyncIterator[str]:
        yield "one "
        yield "two"

    with app.sync.running() as sync:
        job = sync.submit("talk")
        assert "".join(map(str, job.stream())) == "one two"
        for each in job.stream():
            assert str(each) == "one "
            break
        assert job.result(PATIENCE) == "one two"


# ------------------------------------------------------------ bounds


async def test_a_slow_reader_is_dropped_and_the_producer_goes_on(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BUFFER", 5)
    monkeypatch.setattr(output_writer, "FLUSH_EVERY", 0.0)
    app = make_app()

    @app.service(limit=1)
    async def talk(call: Call) -> AsyncIterator[int]:
        await go_on.wait()
        for number in range(300):
            yield number
            await asyncio.sleep(0)

    go_on = asyncio.Event()
    async with app.running(), asyncio.timeout(PATIENCE):
        job = await app.submit("talk")
        async with aclosing(app.output(job.id, heartbeat=0.01)) as slow:
            assert await anext(slow) is None
            go_on.set()
            assert len(await job.result(PATIENCE)) == 300
            received: list[Chunk] = []
            with pytest.raises(SlowConsumer):
                await collect(slow, received)
        last = received[-1].position if received else None
        assert [chunk.data for chunk in received] + await read_data(app, job.id, last) == list(range(300))


async def test_chunks_are_written_in_batches(make_app: MakeApp) -> None:
    app = make_app()
    batches: list[int] = []

    @app.service(limit=2)
    async def talk(call: Call) -> AsyncIterator[int]:
        for number in range(5000):
            yield number
            if number % 10 == 0:
                await asyncio.sleep(0)

    async with app.running():
        append = app._runtime.output_log.append

        async def count(entries: Any) -> Any:
            batches.append(len(entries))
            return await append(entries)

        app._runtime.output_log.append = count  # type: ignore[method-assign]
        jobs = [await app.submit("talk") for _ in range(2)]
        outputs = await asyncio.gather(*(read_data(app, job.id) for job in jobs))
        assert outputs == [list(range(5000))] * 2
    assert sum(batches) < 2000
