"""Kills a process at every point between the upload of a batch and its end, again and again, and then checks that every
batch has exactly one result for each of its lines, and that nothing is left over:

    python -m tests.crash.batches_soak --kills 200 [--distributed]
"""

from __future__ import annotations

import asyncio
from collections import Counter

import orjson

from fairlead import Fairlead
from fairlead.domain.file_batch import OUTPUT, FileBatch, FileBatchStatus
from fairlead.failpoints import FILE_COMPLETED, FILE_WRITING, OF_BATCHES
from fairlead.store.port import JobFilter
from tests.crash.batches_process import make_app
from tests.crash.files_soak import PATIENCE, Killing, main

ALL = 100_000


class KillingBatches(Killing):
    points = (*OF_BATCHES, FILE_WRITING, FILE_COMPLETED)
    process = "tests.crash.batches_process"
    most_passes = 3

    async def check(self) -> str:
        """Let all batches end, check everything, sweep, and check that nothing is left over. Returns a summary."""
        app = self.make(make_app)
        async with app.running():
            store = app._runtime.store
            async with asyncio.timeout(PATIENCE):
                while await store.open_file_batches(1):
                    await asyncio.sleep(0.1)
            batches = await store.list_file_batches(None, before=None, limit=ALL)
            assert self._lines("created") <= {batch.id for batch in batches}, "a batch is lost"
            lines = [await self._check_batch(app, batch) for batch in batches]
            assert await store.count(JobFilter()) == sum(lines), "a line has two jobs, or none"
            outputs = {file.id for file in await app.files.list(None, purpose=OUTPUT, limit=ALL)}
            assert outputs == {batch.output_file_id for batch in batches}, "output files without a batch"
            await self.swept(app)
        return f"{sum(self.kills.values())} kills {self.kills}, {len(batches)} batches with {sum(lines)} lines"

    async def _check_batch(self, app: Fairlead, batch: FileBatch) -> int:
        assert batch.status is FileBatchStatus.COMPLETED, batch
        assert batch.error_file_id is None
        assert batch.output_file_id is not None
        given, got = await self._ids(app, batch.input_file_id), await self._ids(app, batch.output_file_id)
        assert Counter(given) == Counter(got), f"{batch.id}: {len(given)} lines, {len(got)} results"
        return len(got)

    async def _ids(self, app: Fairlead, file_id: str) -> list[str]:
        content = await app.files.read_all(await app.files.get_complete(file_id))
        return [orjson.loads(line)["custom_id"] for line in content.splitlines()]


if __name__ == "__main__":
    asyncio.run(main(KillingBatches))
