"""Kills a process at every point between the upload of a file and its end, again and again, and then checks that no row
names bytes that are not there, that no result is lost, and that nothing is left over:

    python -m tests.crash.files_soak --kills 200 [--distributed]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import orjson

from fairlead import Fairlead
from fairlead.domain import files
from fairlead.domain.job import JobStatus
from fairlead.failpoints import AFTER_CLAIM, AFTER_FINISH, OF_FILES
from tests.crash.files_process import ROUNDS, make_app
from tests.integration.cli_fork import ROOT, Forked

POINTS = (*OF_FILES, AFTER_CLAIM, AFTER_FINISH)
PATIENCE = 120.0


@dataclass
class Killing:
    """What has been done to one folder."""

    points: ClassVar[Sequence[str]] = POINTS
    process: ClassVar[str] = "tests.crash.files_process"
    most_passes: ClassVar[int] = 6
    """A process dies at a random one of its first passes of the point."""

    folder: Path
    environment: dict[str, str]
    chance: random.Random
    kills: dict[str, int] = field(default_factory=dict)
    runs: int = 0

    def run(self, point: str) -> None:
        """Start a process that dies at the point. If the point is passed too rarely, the process ends by itself."""
        after = str(self.chance.randint(1, self.most_passes))
        environment = {**os.environ, **self.environment, "FAIRLEAD_FAILPOINT": point, "FAIRLEAD_FAILPOINT_AFTER": after}
        arguments = ["-m", self.process, str(self.folder), str(self.runs * ROUNDS)]
        self.runs += 1
        with tempfile.TemporaryFile() as said:
            process = Forked(arguments, cwd=ROOT, env=environment, stdout=said, stderr=said)
            try:
                code = process.wait(PATIENCE)
            finally:
                process.kill()
            said.seek(0)
            if code == -signal.SIGKILL:
                self.kills[point] = self.kills.get(point, 0) + 1
            elif code:
                raise AssertionError(f"{point}: {said.read().decode()[-3000:]}")

    def make(self, make_app: Callable[[Path, float], Fairlead]) -> Fairlead:
        """The app of the process, on the same engines. Its uploads are given up after a second."""
        saved = dict(os.environ)
        os.environ.update(self.environment)
        try:
            return make_app(self.folder, 1.0)
        finally:
            os.environ.clear()
            os.environ.update(saved)

    async def check(self) -> str:
        """Let all jobs end, check everything, sweep, and check that nothing is left over. Returns a summary."""
        app = self.make(make_app)
        async with app.running():
            jobs = self._lines("accepted") - self._lines("deleted")
            for job_id in sorted(jobs):
                job = await app.wait(job_id, PATIENCE)
                assert job.status is JobStatus.COMPLETED, job
            named = await self._all_references(app, jobs)
            await self.swept(app)
            left = await self._all_references(app, jobs)
            assert left == named, "the sweep removed a file that a job names"
        return f"{sum(self.kills.values())} kills {self.kills}, {len(jobs)} jobs, {len(left)} files named by jobs"

    def _lines(self, name: str) -> set[str]:
        path = self.folder / name
        return set(path.read_text("ascii").split()) if path.exists() else set()

    async def _all_references(self, app: Fairlead, jobs: set[str]) -> set[str]:
        """The files that the rows of the jobs name. Each of them is read and compared with its SHA-256."""
        named: set[str] = set()
        for job_id in jobs:
            record = await app._runtime.store.get(job_id)
            if record is None:
                continue  # deleted, and the process died before it wrote that down
            for text in (record.input_json, *(result.data_json for result in record.results)):
                stored = files.stored_id(text)
                if stored is not None:
                    named.add(stored)
                    text = (await app.files.read_all(await app.files.get_complete(stored))).decode()
                named.update(files.references_in(orjson.loads(text)))
        for file_id in named:
            await app.files.read_all(await app.files.get_complete(file_id))
        return named

    async def swept(self, app: Fairlead) -> None:
        """Sweep until no upload is left, then compare the objects with the rows."""
        store, began = app._runtime.store, time.monotonic()
        await asyncio.sleep(1.1)
        async with asyncio.timeout(PATIENCE):
            while True:
                await _expire(app)
                if not await app.files.sweep(500) and not (await store.file_totals()).uploading:
                    break
                assert time.monotonic() - began < PATIENCE
        objects = [key async for page in app.files.objects.pages() for key, _ in page]
        known = await store.known_artifacts(objects)
        assert set(objects) == known, f"{len(set(objects) - known)} objects without a row"
        assert (await store.file_totals()).doomed == 0


async def _expire(app: Fairlead) -> None:
    """Let what the killed processes left behind be due: they ran with a long `orphan_after`."""
    runtime = app._runtime
    now = runtime.clock.now
    app.files._now = lambda: now() + 7200.0
    runtime.store._clock = app.files._now  # type: ignore[attr-defined]


async def soak(kills: int, environment: dict[str, str], seed: int, kind: type[Killing] = Killing) -> str:
    with tempfile.TemporaryDirectory() as folder:
        killing = kind(Path(folder), environment, random.Random(seed))
        while sum(killing.kills.values()) < kills:
            for point in kind.points:
                await asyncio.to_thread(killing.run, point)
                if sum(killing.kills.values()) >= kills:
                    break
        return await killing.check()


async def distributed() -> dict[str, str]:
    from tests import redis_servers, servers

    url = await servers.new_database(servers.postgres_url())
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    return {"DATABASE_URL": url, "REDIS_URL": redis_url}


async def main(kind: type[Killing] = Killing) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    environment = await distributed() if options.distributed else {}
    began = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    print(await soak(options.kills, environment, options.seed, kind), f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
