"""A worker that starts jobs in the commit that accepts them, for a gateway in the same process.

A job is usually accepted by one commit, then offered to the dispatcher, granted to a worker, and started by a second
commit. If a slot is free and no other step is next, the dispatcher grants the step before the first commit, which then
holds both transitions. The dispatcher decides as always: by the limits, the rates and the order of the queue. Nothing
is called before the commit. If it fails, the slot is released. If the process dies before it, there is no job, and the
lease, if the dispatcher is another process, expires.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from fairlead import failpoints
from fairlead.dispatch.port import ClaimNew, Lease
from fairlead.domain.job import JobStatus
from fairlead.domain.transitions import Start, Submit
from fairlead.engine.claim_loop import UNLIMITED
from fairlead.engine.outbox_relay import offer_of
from fairlead.engine.worker import Worker
from fairlead.errors import RequestError, Unavailable
from fairlead.store.commits import NOT_STARTED
from fairlead.store.port import Outcome

LAST = 2**51
"""The seq of a step whose job has none yet: the step is behind all others of the same rank."""


class PromptWorker(Worker):
    def __init__(self, *args: Any, claim_new: ClaimNew, **options: Any) -> None:
        super().__init__(*args, **options)
        self._claim_new = claim_new

    async def submit(self, submit: Submit) -> Outcome | None:
        """Accept a job and start it. Returns None, and does nothing, if it cannot be started at once."""
        if not self._may_start(submit) or not self._budget.take(self.wake_all, at_most=1):
            return None
        accepted: asyncio.Future[Outcome | None] = self._loop.create_future()
        self._spawn(self._claim_and_start(submit, accepted))  # it goes on if the caller is cancelled
        return await accepted

    def _may_start(self, submit: Submit) -> bool:
        job, rules, pool = submit.job, self._rules.current, self.pool
        if self.draining or self._closing or self._group_commit.full or self._gate.limit != UNLIMITED:
            return False
        if job.status is not JobStatus.PENDING or submit.ordered or len(job.steps) > 1:
            return False
        service = rules.services.get(job.service)
        if service is None or service.pool is not None or service.regions:
            return False
        if pool.partial or job.service not in pool.serves(self._rules.executed):
            return False
        return self._rules.lanes.has(job.service, job.priority.band)

    async def _claim_and_start(self, submit: Submit, accepted: asyncio.Future[Outcome | None]) -> None:
        async def write(starts: Sequence[Start]) -> Sequence[Outcome | Exception]:
            try:
                outcome, started = await self._group_commit.write_chain(submit, starts[0])
            except RequestError as error:  # refused: nothing was written, so the slot is free at once
                outcome, started = error, NOT_STARTED
            except Exception as error:
                outcome = started = error
            if accepted.done():
                pass  # the caller was cancelled
            elif isinstance(outcome, Exception):
                accepted.set_exception(outcome)
            else:
                accepted.set_result(outcome)
            return [started]

        began = time.monotonic()
        try:
            lease = await self._claim_step(submit)
            if lease is not None:
                await self._start([lease], began, write)
            elif not accepted.done():
                accepted.set_result(None)
        finally:
            if not accepted.done():
                accepted.set_exception(Unavailable("this process is stopping", retry_after=1.0))

    async def _claim_step(self, submit: Submit) -> Lease | None:
        lease = None
        try:
            offer = offer_of(submit.job, self._rules.current.services, seq=LAST)
            lease = await self._claim_new(offer, self.name)
        finally:
            self._budget.give_back(lease is None)
        if lease is not None:
            failpoints.passed(failpoints.AFTER_CLAIM)
            self._leases.add([lease])
        return lease
