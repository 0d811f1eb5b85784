"""The contract of output logs."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from fairlead.dispatch.memory import output_log as in_memory
from fairlead.dispatch.memory.output_log import MemoryOutputLog
from fairlead.dispatch.output_log import PAGE, Appended, OutputLog
from fairlead.dispatch.redis.output_log import RedisOutputLog
from fairlead.domain.output import Entry, Position
from tests.contract.dispatchers import FakeClock
from tests.redis_servers import server_url

KEPT, LOST = Appended.KEPT, Appended.LOST


@pytest.fixture(params=["memory", "redis"])
async def output_log(request: pytest.FixtureRequest) -> AsyncIterator[OutputLog]:
    if request.param == "memory":
        log: OutputLog = MemoryOutputLog(FakeClock())
    else:
        log = RedisOutputLog(server_url(), prefix=f"test-{secrets.token_hex(6)}")
    yield log
    await log.close()


def entry(run: int, first: int, *chunks: str, job: str = "j", step: int = 0) -> Entry:
    return Entry(job, run, step, 1, first, list(chunks))


async def test_entries_are_read_in_the_order_of_their_positions(output_log: OutputLog) -> None:
    one, two, three = entry(2, 0, '"a"', '"b"'), entry(2, 2, '{"c":1}'), entry(5, 0, '"ä"', step=1)
    assert await output_log.append([one, two]) == [KEPT, KEPT]
    assert await output_log.append([three]) == [KEPT]
    assert await output_log.read("j") == [one, two, three]


async def test_a_read_begins_with_the_entry_that_has_the_position(output_log: OutputLog) -> None:
    one, two, three = entry(2, 0, "1", "2"), entry(2, 2, "3"), entry(12, 0, "4")
    await output_log.append([one, two, three])
    assert await output_log.read("j", Position(2, 1)) == [one, two, three]
    assert await output_log.read("j", Position(2, 2)) == [two, three]
    assert await output_log.read("j", Position(2, 3)) == [three]
    assert await output_log.read("j", Position(12, 1)) == []


async def test_a_reader_in_memory_that_pages_through_a_long_output_looks_at_few_entries() -> None:
    looks = 0

    class Counted(Entry):
        @property
        def last(self) -> int:
            nonlocal looks
            looks += 1
            return self.first

    output_log = MemoryOutputLog(lambda: 0.0)
    count = 50 * PAGE
    await output_log.append([Counted("j", 1, 0, 1, number, ["0"]) for number in range(count)])
    looks, read = 0, 0
    while page := await output_log.read("j", Position(1, read)):
        read += len(page)
    assert read == count
    assert looks < count


async def test_jobs_are_apart(output_log: OutputLog) -> None:
    mine, other = entry(1, 0, "1"), entry(1, 0, "2", job="k")
    await output_log.append([mine, other])
    assert await output_log.read("j") == [mine]
    assert await output_log.read("k") == [other]
    assert await output_log.read("unknown") == []


async def test_an_entry_that_arrives_twice_is_kept_once(output_log: OutputLog) -> None:
    one = entry(1, 0, "1")
    assert await output_log.append([one]) == [KEPT]
    assert await output_log.append([one]) == [KEPT]
    assert await output_log.read("j") == [one]


async def test_a_late_entry_of_an_older_run_is_ignored(output_log: OutputLog) -> None:
    new = entry(7, 0, '"new"')
    await output_log.append([entry(3, 0, '"old"'), new])
    await output_log.append([entry(3, 1, '"late"')])
    assert (await output_log.read("j"))[1:] == [new]


async def test_a_log_that_lost_the_beginning_says_so(output_log: OutputLog) -> None:
    assert await output_log.append([entry(3, 5, "6")]) == [LOST]
    assert await output_log.read("j") == []
    assert await output_log.append([entry(3, 0, "1"), entry(3, 1, "2")]) == [KEPT, KEPT]


async def test_a_long_output_is_read_in_pages(output_log: OutputLog) -> None:
    entries = [entry(1, number, str(number)) for number in range(PAGE + 10)]
    await output_log.append(entries)
    first = await output_log.read("j")
    assert first == entries[:PAGE]
    assert await output_log.read("j", Position(1, first[-1].last + 1)) == entries[PAGE:]


async def test_the_oldest_entries_of_a_long_output_are_dropped(
    output_log: OutputLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory", "redis"):
        monkeypatch.setattr(f"fairlead.dispatch.{module}.output_log.MAX_ENTRIES", 10)
    for start in range(0, 1000, 100):
        await output_log.append([entry(1, number, str(number)) for number in range(start, start + 100)])
    (oldest, *_) = await output_log.read("j")
    assert oldest.first > 500
    (newest,) = await output_log.read("j", Position(1, 999))
    assert newest.chunks == ["999"]


async def test_memory_drops_the_output_of_jobs_that_ended_long_ago() -> None:
    clock = FakeClock()
    log = MemoryOutputLog(clock)
    await log.append([entry(1, 0, "1"), entry(1, 0, "1", job="k")])
    clock.advance(400)
    await log.append([entry(1, 1, "2", job="k")])
    clock.advance(400)
    assert await log.read("j") == []
    assert len(await log.read("k")) == 2


async def test_memory_drops_the_job_that_was_written_longest_ago_if_there_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_memory, "MAX_CHARACTERS", 100)
    log = MemoryOutputLog(FakeClock())
    for job in ("a", "b"):
        await log.append([entry(1, 0, "x" * 40, job=job)])
    await log.append([entry(1, 1, "x", job="a")])
    await log.append([entry(1, 0, "x" * 40, job="c")])
    assert [job for job in "abc" if await log.read(job)] == ["a", "c"]


async def test_redis_keeps_the_output_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"test-{secrets.token_hex(6)}"
    log = RedisOutputLog(server_url(), prefix=prefix)
    await log.append([entry(1, 0, "1")])
    left = await log._client.command("PTTL", f"{prefix}:output:j")
    assert 0 < left <= 600_000
    await log.close()
