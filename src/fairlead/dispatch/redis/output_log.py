"""The output log in Redis: a stream for each job, whose entries have the position of their last chunk as their id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import orjson

from fairlead.dispatch.output_log import KEEP_S, MAX_ENTRIES, PAGE, Appended
from fairlead.dispatch.redis.client import ScriptCall, ScriptClient
from fairlead.dispatch.redis.keys import output_key
from fairlead.domain.output import Entry, Position
from fairlead.errors import Unavailable

KEEP_MS = int(KEEP_S * 1000)


class RedisOutputLog:
    def __init__(self, url: str, *, prefix: str) -> None:
        self._client = ScriptClient(url)
        self._prefix = prefix

    async def append(self, entries: Sequence[Entry]) -> Sequence[Appended]:
        replies = await self._client.run_each([self._call(entry) for entry in entries])
        return [
            Appended.FAILED if isinstance(reply, Unavailable) else Appended.KEPT if reply else Appended.LOST
            for reply in replies
        ]

    def _call(self, entry: Entry) -> ScriptCall:
        args = (KEEP_MS, MAX_ENTRIES, entry.run, entry.first, entry.last, orjson.dumps(entry.as_list()))
        return ScriptCall("output", (output_key(self._prefix, entry.job_id),), args, recurs=False)

    async def read(self, job_id: str, since: Position | None = None) -> list[Entry]:
        start = "-" if since is None else str(since)
        reply = await self._client.command("XRANGE", output_key(self._prefix, job_id), start, "+", "COUNT", PAGE)
        return [Entry.of_list(job_id, orjson.loads(fields[1])) for _, fields in reply]

    async def delete(self, job_ids: Sequence[str]) -> None:
        await asyncio.gather(*(self._client.command("UNLINK", output_key(self._prefix, job_id)) for job_id in job_ids))

    async def close(self) -> None:
        await self._client.close()
