"""Tells the dispatcher what a worker knows about the calls of services with rates: when they were sent, and what the
upstream said about its limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from fairlead.dispatch.port import Dispatcher
from fairlead.dispatch.rates import Rest, Sent
from fairlead.domain.costs import TOKENS
from fairlead.engine.parts import RulesRef
from fairlead.engine.step_run import StepRun
from fairlead.errors import Unavailable

log = logging.getLogger("fairlead.worker")

REPORT_EVERY = 0.25
"""Seconds between two looks at the running calls. A call that ends sooner says with its release when it was sent."""


class SentReports:
    def __init__(self, loop: asyncio.AbstractEventLoop, dispatcher: Dispatcher, rules: RulesRef) -> None:
        self._rules = rules
        self._loop = loop
        self._dispatcher = dispatcher
        self._unreported: dict[str, StepRun] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, run: StepRun) -> None:
        """Report when the call of this step is sent, if a rate counts it and it runs for a while."""
        if run.lease.service not in self._rules.current.rated:
            return
        run.counted = True
        self._unreported[run.lease.name] = run
        if self._timer is None:
            self._timer = self._loop.call_later(REPORT_EVERY, self._look)

    def _look(self) -> None:
        self._timer = None
        self._unreported = {name: run for name, run in self._unreported.items() if not (run.ended or run.released)}
        reports = [
            Sent(name, run.lease.service, run.sent, run.lease.scope)
            for name, run in self._unreported.items()
            if run.sent is not None
        ]
        for report in reports:
            del self._unreported[report.lease]
        if reports:
            task = self._loop.create_task(self._report(reports), name="fairlead-sent")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._unreported:
            self._timer = self._loop.call_later(REPORT_EVERY, self._look)

    async def _report(self, reports: list[Sent]) -> None:
        try:
            await self._dispatcher.sent(reports)
        except Unavailable as error:  # the releases say it again
            log.debug("cannot report when calls were sent: %s", error)

    async def rest(self, rests: Sequence[Rest]) -> None:
        """Let services rest as their upstreams asked for, before the slot is released: otherwise the next step would be
        refused too."""
        rests = [counted for rest in rests if (counted := self._counted(rest)) is not None]
        for rest in rests:
            if rest.requests is None and rest.units is None:
                where = rest.service if rest.region is None else f"{rest.service} in {rest.region}"
                log.info("the upstream of %s takes no calls for %.1f s", where, rest.seconds)
        if not rests:
            return
        try:
            await self._dispatcher.rest(rests)
        except Unavailable as error:  # the next refused call reports it again
            log.warning("the rest of an upstream is not shared: %s", error)

    def _counted(self, rest: Rest) -> Rest | None:
        """The rest with its tokens as units. None if it has tokens alone, and its service counts in another unit."""
        if rest.tokens is None:
            return rest
        service = self._rules.current.services.get(rest.service)
        if service is not None and service.cost_unit == TOKENS:
            return replace(rest, units=rest.tokens, tokens=None)
        return None if rest.requests is None and rest.units is None else replace(rest, tokens=None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
