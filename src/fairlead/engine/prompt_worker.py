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
from functools import partial
from typing import Any

from fairlead import failpoints
from fairlead.dispatch.port import ClaimNew, Lease, Release, ReleaseWithNew
from fairlead.domain.job import JobStatus
from fairlead.domain.transitions import Submit
from fairlead.engine.claim_loop import UNLIMITED
from fairlead.engine.outbox_relay import offer_of
from fairlead.engine.worker import Worker
from fairlead.errors import RequestError, Unavailable
from fairlead.executors.factory import reaches
from fairlead.store.commits import NOT_STARTED
from fairlead.store.port import Outcome

LAST = 2**51
"""The seq of a step whose job has none yet: the step is behind all others of the same rank."""

_Caller = asyncio.Future[Outcome | None]


class PromptWorker(Worker):
    def __init__(
        self, *args: Any, claim_new: ClaimNew, release_with_new: ReleaseWithNew | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._claim_new = claim_new
        self._release_with_new = release_with_new
        self._callers: set[_Caller] = set()

    def submit(self, submit: Submit) -> _Caller | None:
        """Accept a job and start it. Returns None, and does nothing, if it cannot be started at once; the result of the
        future is None if the dispatcher has not granted it a slot. A start goes on if the caller is cancelled."""
        if not self._may_start(submit) or not self._budget.take(self.wake_all, at_most=1):
            return None
        caller: _Caller = self._loop.create_future()
        self._callers.add(caller)
        self._tasks.add(caller)
        self._idle.clear()
        try:
            offer = offer_of(submit.job, self._rules.current.services, seq=LAST)
            self._claim_new(offer, self.name, partial(self._granted, submit, caller, time.monotonic()))
        except Exception as error:
            self._budget.give_back(1)
            self._answer(caller, error)
        return caller

    def _may_start(self, submit: Submit) -> bool:
        job, rules, pool = submit.job, self._rules, self.pool
        if self.draining or self._closing or self._group_commit.full or self._gate.limit != UNLIMITED:
            return False
        if job.status is not JobStatus.PENDING or submit.ordered or len(job.steps) > 1:
            return False
        [name] = job.steps
        service = rules.current.services.get(name)
        if service is None or service.pool is not None or service.regions:
            return False
        if pool.partial or name not in pool.serves(rules.executed):
            return False
        return rules.lanes.has(name, job.priority.band) and reaches(self._services[name], None)

    def _granted(self, submit: Submit, caller: _Caller, claimed_at: float, lease: Lease | None) -> None:
        """Write the job and its start, once the dispatcher has answered."""
        self._budget.give_back(lease is None)
        if lease is None or self._closing:  # then the lease expires
            self._answer(caller, None)
            return
        failpoints.passed(failpoints.AFTER_CLAIM)
        self._leases.add([lease])
        answered = self._starter.give_up_later([lease])

        def written(outcomes: Sequence[Outcome | Exception]) -> None:
            answered()
            accepted, started = outcomes
            if self._closing:
                return  # the caller has its answer, and recovery finds the step
            if isinstance(started, RequestError):
                started = NOT_STARTED  # refused: nothing was written, so the slot is free at once
            try:
                self._run_steps(self._starter.started([lease], [started]), claimed_at)
            finally:
                self._answer(caller, accepted)

        try:
            self._group_commit.write_chain(submit, self._starter.start_of(lease), written)
        except Unavailable as error:
            written([error, error])

    def _release_slot(self, release: Release) -> None:
        if self._release_with_new is None or self.draining or release.service in self._rules.current.elsewhere:
            super()._release_slot(release)
        else:
            self._release_with_new.release(release, self.name, super()._release_slot)

    def _answer(self, caller: _Caller, outcome: Outcome | Exception | None) -> None:
        self._callers.discard(caller)
        self._task_done(caller)
        if caller.done():
            return  # the caller was cancelled, or the worker is closed
        if isinstance(outcome, Exception):
            caller.set_exception(outcome)
        else:
            caller.set_result(outcome)

    async def close(self) -> None:
        self._closing = True
        for caller in list(self._callers):
            self._answer(caller, Unavailable("this process is stopping", retry_after=1.0))
        await super().close()
