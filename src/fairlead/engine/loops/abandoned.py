"""Cancels the jobs of a front whose readers are gone (docs/adr/0026). A gateway cancels the job of a client that
disconnects. If the gateway itself dies, the client has `grace` seconds to send its request again and join the job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairlead.artifacts.files import Files
from fairlead.dispatch.output_log import OutputLog
from fairlead.domain import transitions
from fairlead.domain.front_readers import Reader, Readers
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.usage import Usage
from fairlead.engine.parts import RulesRef
from fairlead.engine.spent_calls import streamed_usage
from fairlead.engine.transition_writer import TransitionWriter
from fairlead.store.port import Store

log = logging.getLogger("fairlead.openai")

EVERY = 1.0
BATCH = 10_000
"""The number of jobs that are cancelled at once, and that are read at first."""


class AbandonedLoop:
    """Watches the registered processes. `grace` seconds after one of them disappeared, and after this loop started, it
    looks for open jobs that no living process reads. Nothing else reads the jobs, so a tick is cheap."""

    name = "abandoned"

    def __init__(
        self,
        store: Store,
        recorder: TransitionWriter,
        rules: RulesRef,
        *,
        grace: float,
        outputs: OutputLog | None = None,
        files: Files | None = None,
        timer: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._rules = rules
        self._grace = grace
        self._outputs = outputs
        self._files = files
        self._timer = timer
        # On the monotonic clock: if the database's clock is set forward, all processes seem dead for a moment.
        self._began: float | None = None
        self._alive: frozenset[str] = frozenset()
        self._gone: dict[str, float] = {}
        """When each process disappeared. A process that was never seen disappeared before this loop began."""
        self._due: list[float] = []
        """When to look."""
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        moment = await self._store.now()
        alive = frozenset(record.name for record in await self._store.processes() if record.alive(moment))
        time = self._timer()
        if self._began is None or self._alive - alive:
            self._due.append(time + self._grace)
        self._began = time if self._began is None else self._began
        self._gone |= dict.fromkeys(self._alive - alive, time)
        self._alive = alive
        if self._due and time >= self._due[0]:
            await self._look(time, now)
            self._due = [due for due in self._due if due > time]
            self._gone = {name: since for name, since in self._gone.items() if since + self._grace > time}
        return now + EVERY

    async def _look(self, time: float, now: float) -> None:
        """Cancel abandoned jobs."""
        limit = BATCH
        while len(found := await self._store.front_readers(limit)) == limit:
            limit *= 10  # the jobs that were not read may be the abandoned ones
        self.scanned += len(found)
        abandoned = [job_id for job_id, text in found if self._is_abandoned(Readers.of(text), time)]
        for begin in range(0, len(abandoned), BATCH):
            await self._cancel(abandoned[begin : begin + BATCH], now)

    async def _cancel(self, job_ids: list[str], now: float) -> None:
        lanes = self._rules.lanes
        jobs = [
            job
            for job in (await self._store.get_jobs(job_ids)).values()
            if not job.status.finished and lanes.has(job.service, job.priority.band)
        ]
        moves = [(job, transitions.cancel(job, now=now, usage=await self._used_by(job))) for job in jobs]
        cancelled, error = await self._recorder.apply_each(moves, now)
        if cancelled:
            log.warning("cancelled %d requests whose gateway is gone and that no client joined", len(cancelled))
        self.queued += len(cancelled)
        if error is not None:
            raise error

    async def _used_by(self, job: Job) -> Usage | None:
        if job.status is not JobStatus.RUNNING or self._outputs is None:
            return None
        streamed = await streamed_usage(job.id, self._outputs, self._store, self._files)
        return None if streamed is None else streamed.of(job)

    def _is_abandoned(self, readers: Readers | None, time: float) -> bool:
        return readers is not None and all(self._is_gone(reader, time) for reader in readers.requests)

    def _is_gone(self, reader: Reader, time: float) -> bool:
        if not reader.process or reader.process in self._alive:
            return False
        return time >= self._gone.get(reader.process, self._began or 0.0) + self._grace
