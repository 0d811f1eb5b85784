"""Kills processes at every point between the upload of a batch and its end, again and again, and then checks that every
batch has exactly one result for each of its lines, and that nothing is left over:

    python -m tests.crash.batches_soak --kills 200 [--distributed]

The processes are those of the command line: `fairlead up`, or with `--distributed` a gateway, two workers and two
managers. Each is killed at a point on its way or at any moment, and started again at once, while clients upload files,
create batches and read their results.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import openai
import orjson

from fairlead import Fairlead
from fairlead.domain.file_batch import OUTPUT, FileBatch, FileBatchStatus
from fairlead.failpoints import (
    AFTER_CLAIM,
    AFTER_FINISH,
    BATCH_CREATED,
    FILE_COMPLETED,
    FILE_CREATED,
    FILE_WRITING,
    FILE_WRITTEN,
    OF_BATCHES,
)
from fairlead.store.port import JobFilter
from tests.chaos.process import free_port
from tests.crash.batches_process import CHAT, LINES, lines, make_app
from tests.crash.files_soak import PATIENCE, Killing, distributed
from tests.integration.cli_fork import ROOT, Forked
from tests.integration.cli_process import environment

T = TypeVar("T")

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
            keys = [batch.request_key for batch in batches if batch.request_key is not None]
            assert len(set(keys)) == len(keys), "a key has two batches"
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


# ---------------------------------------------------------------- real processes

APP = """
import os
from pathlib import Path

from fairlead import failpoints
from tests.crash.batches_process import make_app

# The process is forked from one that has read the environment before.
failpoints._active = os.environ.get("FAIRLEAD_FAILPOINT")
failpoints._passes_left = int(os.environ.get("FAIRLEAD_FAILPOINT_AFTER", "1"))
app = make_app(Path(__file__).parent)
"""
ANY_MOMENT = "any moment"
UPLOADS = (FILE_CREATED, FILE_WRITING, FILE_WRITTEN, FILE_COMPLETED)
OF_GATEWAYS = (BATCH_CREATED, *UPLOADS, ANY_MOMENT)
OF_WORKERS = (AFTER_CLAIM, AFTER_FINISH, ANY_MOMENT)
OF_MANAGERS = (*(point for point in OF_BATCHES if point != BATCH_CREATED), FILE_CREATED, FILE_WRITTEN, ANY_MOMENT)
OF_ALL = (*OF_BATCHES, *UPLOADS, AFTER_CLAIM, AFTER_FINISH, ANY_MOMENT)
LONGEST_LIFE_S = 6.0
"""A process that has not reached its point by then is killed where it is."""
CLIENTS = 4


class KillingProcesses(KillingBatches):
    """`run` is called once for each process, and goes on until there are enough kills."""

    wanted = 0

    @property
    def enough(self) -> bool:
        return sum(self.kills.values()) >= self.wanted

    async def kill(self, kills: int) -> str:
        self.wanted = kills
        (self.folder / "batches_app.py").write_text(APP, encoding="ascii")
        port = free_port()
        roles = {"up": ("up", OF_ALL)}
        if self.environment:
            roles = {"api": ("api", OF_GATEWAYS)}
            roles |= {f"worker {number}": ("worker", OF_WORKERS) for number in (1, 2)}
            roles |= {f"manager {number}": ("manager", OF_MANAGERS) for number in (1, 2)}
        async with asyncio.TaskGroup() as group:
            kept = [group.create_task(self._keep(name, *role, port)) for name, role in roles.items()]
            async with asyncio.TaskGroup() as clients:
                for number in range(CLIENTS):
                    clients.create_task(self._be_client(f"c{number}", f"http://127.0.0.1:{port}/v1"))
            for task in kept:
                task.cancel()
        return await self.check()

    # ------------------------------------------------------------ processes

    async def _keep(self, name: str, role: str, points: tuple[str, ...], port: int) -> None:
        """Run a process, and start it again whenever it was killed."""
        while True:
            point = None if self.enough else self.chance.choice(points)
            process = self._start(name, role, point, port)
            try:
                await self._let_die(process, point)
            finally:
                process.kill()
            assert process.returncode == -signal.SIGKILL, self._log(name).read_text("utf-8")[-3000:]
            if not self.enough:
                self.kills[f"{role}: {point}"] = self.kills.get(f"{role}: {point}", 0) + 1

    def _start(self, name: str, role: str, point: str | None, port: int) -> Forked:
        extra = {**self.environment, "PYTHONPATH": str(ROOT)}
        if point is not None:
            extra |= {"FAIRLEAD_FAILPOINT": point, "FAIRLEAD_FAILPOINT_AFTER": str(self.chance.randint(1, 3))}
        options = ("--port", str(port)) if role in ("up", "api") else ()
        command = (role, "batches_app:app", "--log-level", "warning", *options)
        with self._log(name).open("w", encoding="utf-8") as log:
            return Forked(command, cwd=self.folder, env=environment(extra), stdout=log, stderr=log)

    async def _let_die(self, process: Forked, point: str | None) -> None:
        life = self.chance.uniform(0.2, LONGEST_LIFE_S) if point == ANY_MOMENT else LONGEST_LIFE_S
        until = time.monotonic() + life
        while process.poll() is None and (point is None or time.monotonic() < until):
            await asyncio.sleep(0.02)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    # ------------------------------------------------------------ clients

    async def _be_client(self, name: str, url: str) -> None:
        headers = {"X-Fairlead-User": name}
        async with openai.AsyncOpenAI(
            base_url=url, api_key="any", max_retries=0, timeout=20, default_headers=headers
        ) as client:
            number = 0
            while not self.enough or not number:
                await self._one_batch(client, f"{name}-{number}")
                number += 1

    async def _one_batch(self, client: openai.AsyncOpenAI, name: str) -> None:
        content = b"".join([line async for line in lines(name)])
        file = await _insist(lambda: client.files.create(file=("requests.jsonl", content), purpose="batch"))
        fields: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        key = {"Idempotency-Key": name}
        batch = await _insist(lambda: client.batches.create(**fields, extra_headers=key))
        batch_id = batch.id
        with (self.folder / "created").open("a", encoding="ascii") as created:
            created.write(f"{batch_id}\n")
        async with asyncio.timeout(PATIENCE):
            while batch.status != "completed":
                assert batch.status in ("validating", "in_progress", "finalizing"), batch
                await asyncio.sleep(0.1)
                batch = await _insist(lambda: client.batches.retrieve(batch_id))
        output = batch.output_file_id or ""
        text = (await _insist(lambda: client.files.content(output))).text
        assert [orjson.loads(line)["custom_id"] for line in text.splitlines()] == [f"{name}-{n}" for n in range(LINES)]


async def _insist(request: Callable[[], Awaitable[T]]) -> T:
    """Send a request until a gateway answers it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await request()
            except (openai.APIConnectionError, openai.InternalServerError):
                await asyncio.sleep(0.1)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    found = await distributed() if options.distributed else {}
    began = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        killing = KillingProcesses(Path(folder), found, random.Random(options.seed))
        try:
            print(await killing.kill(options.kills), f"{time.monotonic() - began:.0f} s")
        finally:
            print(f"{sum(killing.kills.values())} kills", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
