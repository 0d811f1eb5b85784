"""When the chunks that steps emit are delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from fairlead.dispatch.output_log import Appended, OutputLog
from fairlead.domain.job import Job
from fairlead.domain.output import Entry
from fairlead.engine import output_writer
from fairlead.engine.events import Hub
from fairlead.engine.output_writer import OutputWriter, RunOutput
from fairlead.executors.port import CallOutput

PATIENCE_S = 20.0


class _Readers:
    """Takes the place of the hub and of the log."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[str, Sequence[str]]] = asyncio.Queue()

    def publish_output(self, entry: Entry) -> None:
        self.received.put_nowait((entry.job_id, entry.chunks))

    async def append(self, entries: Sequence[Entry]) -> list[Appended]:
        return [Appended.KEPT] * len(entries)


def job(name: str) -> Job:
    return cast(Job, SimpleNamespace(id=name, run=1, step=0, attempt=1, user_id="ann"))


async def test_the_first_chunk_of_a_step_does_not_wait_for_the_chunks_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output_writer, "FLUSH_EVERY", 3600.0)
    readers = _Readers()
    writer = OutputWriter(cast(OutputLog, readers), cast(Hub, readers))
    one, other = (RunOutput(job(name), CallOutput(None)) for name in ("one", "other"))

    def emit(output: RunOutput, word: str) -> None:
        output.call.append(f'"{word}"')
        writer.emitted(output)

    async with asyncio.timeout(PATIENCE_S):
        emit(one, "first")
        assert await readers.received.get() == ("one", ['"first"'])
        emit(one, "second")  # it is delivered with the next flush
        emit(other, "first")
        delivered = [await readers.received.get() for _ in range(2)]
    assert delivered == [("one", ['"second"']), ("other", ['"first"'])]
    await writer.close()
