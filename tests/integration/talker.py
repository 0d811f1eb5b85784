"""A service that emits output when the test asks for it, and readers of the output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fairlead import Call, Chunk, End, Fairlead
from fairlead.domain.output import Position

PATIENCE = 30.0


class Talker:
    """A service that emits what the test asks for."""

    def __init__(self, app: Fairlead, **options: Any) -> None:
        self.steps: asyncio.Queue[Any] = asyncio.Queue()
        app.service("talk", limit=1, backoff=[0], **options)(self._handle)

    async def _handle(self, call: Call) -> None:
        while (step := await self.steps.get()) is not None:
            if isinstance(step, Exception):
                raise step
            call.emit(step)

    def say(self, *steps: Any) -> None:
        for step in steps:
            self.steps.put_nowait(step)


async def read(app: Fairlead, job_id: str, after: Position | str | None = None) -> list[Any]:
    """The output until the end: texts and other data of chunks, `Restart` and `End`."""
    async with asyncio.timeout(PATIENCE), aclosing(app.output(job_id, after)) as output:
        return [each.data if isinstance(each, Chunk) else each async for each in output]


async def read_data(app: Fairlead, job_id: str, after: Position | str | None = None) -> list[Any]:
    *data, end = await read(app, job_id, after)
    assert isinstance(end, End)
    return data


async def collect(output: AsyncIterator[Any], chunks: list[Chunk]) -> None:
    async for each in output:
        if isinstance(each, Chunk):
            chunks += [each]


class Reader:
    """Collects the output of a job in the background."""

    def __init__(self, app: Fairlead, job_id: str, after: Position | str | None = None) -> None:
        self.got: list[Any] = []
        self.chunks: list[Chunk] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(app.output(job_id, after)))

    async def _read(self, output: Any) -> None:
        async with aclosing(output):
            async for each in output:
                self.got.append(each.data if isinstance(each, Chunk) else each)
                if isinstance(each, Chunk):
                    self.chunks.append(each)
                self._news.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.got) < count:
                if self._task.done():
                    self._task.result()
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> list[Any]:
        async with asyncio.timeout(PATIENCE):
            await self._task
        assert isinstance(self.got[-1], End)
        return self.got[:-1]
