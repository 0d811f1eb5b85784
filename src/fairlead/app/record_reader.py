"""Reads the records of jobs for many callers at once: what is requested while a read runs is one further read.

A thousand requests that wait for their jobs would otherwise be a thousand queries, each with its own change of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fairlead.domain.job import JobRecord

MOST = 50
"""Records of one read."""

Read = Callable[[Sequence[str]], Awaitable[dict[str, JobRecord]]]


class RecordReader:
    """A record that it returns was read after `get` was called. `read` reads many."""

    def __init__(self, read: Read) -> None:
        self._read_many = read
        self._requested: list[tuple[str, asyncio.Future[JobRecord | None]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def get(self, job_id: str) -> JobRecord | None:
        record: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self._requested.append((job_id, record))
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        return await record

    async def _read(self) -> None:
        try:
            while self._requested:
                batch, self._requested = self._requested[:MOST], self._requested[MOST:]
                await self._read_batch(batch)
        finally:
            self._reading = None

    async def _read_batch(self, batch: list[tuple[str, asyncio.Future[JobRecord | None]]]) -> None:
        try:
            records = await self._read_many([job_id for job_id, _ in batch])
        except BaseException as error:
            for _, record in batch:
                if not record.done():
                    record.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for job_id, record in batch:
            if not record.done():  # its caller was cancelled
                record.set_result(records.get(job_id))
