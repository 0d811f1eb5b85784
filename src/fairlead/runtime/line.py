"""The running line of one process: dispatcher, relay, worker and manager, assembled, started and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from fairlead.dispatch.port import Dispatcher
from fairlead.domain.config import Config
from fairlead.domain.limits import Rules
from fairlead.executors.port import Executor
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Hub
from fairlead.runtime.heartbeat import Heartbeat
from fairlead.runtime.loops.holds import HoldsLoop
from fairlead.runtime.loops.outbox import OutboxLoop
from fairlead.runtime.loops.positions import PositionsLoop
from fairlead.runtime.loops.promote import PromoteLoop
from fairlead.runtime.loops.prune import PruneLoop
from fairlead.runtime.loops.reconcile import ReconcileLoop
from fairlead.runtime.loops.recover import RecoverLoop
from fairlead.runtime.loops.rules import RulesLoop
from fairlead.runtime.loops.timers import TimersLoop
from fairlead.runtime.manager import Manager
from fairlead.runtime.rebuild import Rebuild
from fairlead.runtime.record import Recorder
from fairlead.runtime.relay import Relay
from fairlead.runtime.worker import Worker
from fairlead.store.journal import Journal
from fairlead.store.port import DeclareServices, Done, Store

log = logging.getLogger(__name__)


class Line:
    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        journal: Journal,
        recorder: Recorder,
        dispatcher: Dispatcher,
        relay: Relay,
        executors: Mapping[str, Executor],
        hub: Hub,
        clock: Clock,
    ) -> None:
        self.rules = Rules({})
        self.dispatcher = dispatcher
        self._config = config
        self._journal = journal
        self._recorder = recorder
        self._relay = relay
        self._executors = executors
        self.worker = Worker(
            config,
            dispatcher=dispatcher,
            journal=journal,
            recorder=recorder,
            executors=executors,
            hub=hub,
            clock=clock,
            rules=lambda: self.rules,
        )
        recovery = RecoverLoop(store, dispatcher, recorder, config)
        self.manager = Manager(
            [
                OutboxLoop(store, journal, relay),
                TimersLoop(store, recorder, lambda: config.wait_timeouts),
                PromoteLoop(store, recorder, config.promotion, lambda: config.wait_timeouts),
                recovery,
                HoldsLoop(store, journal, dispatcher),
                PruneLoop(journal, config.retention),
                ReconcileLoop(store, dispatcher),
                PositionsLoop(dispatcher, hub),
                RulesLoop(store, lambda: self.rules.version, self.apply),
            ],
            clock,
        )
        self.rebuild = Rebuild(store, journal, dispatcher, recovery, clock)
        self._heartbeat: Heartbeat | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self.broken: BaseException | None = None

    async def start(self) -> None:
        """Returns when the line is being rebuilt: jobs are accepted from now on, and granted once it is open."""
        outcome = await self._journal.write(
            DeclareServices(
                tuple(service.rules(name) for name, service in self._config.services.items()),
                self._config.pools,
            )
        )
        assert isinstance(outcome, Done)
        await self.apply(outcome.value)
        self._recorder.on_timer = lambda moment: self.manager.wake("timers", moment)
        self._recorder.on_stopped = self._relay.on_ended = self.worker.stop_job
        self.dispatcher.on_wake(self.worker.wake)
        await self.rebuild.close_scopes(self.rules)
        shortest = min((service.lease_ttl for service in self._config.services.values()), default=15.0)
        self._heartbeat = Heartbeat(
            self.worker.name, self.dispatcher, self.worker.leases, self.worker.lost, interval=shortest / 3
        )
        self._heartbeat.start()
        self._run(self._relay.run(self._journal), "relay")
        self._run(self._rebuild_then_manage(), "manager")
        self._run(self.worker.run(), "worker")
        self._run(self.worker.sweep(), "sweep")

    async def apply(self, rules: Rules) -> None:
        """New limits or pauses, as the truth says. What this process knows how to run stays what its config says."""
        if rules.version >= self.rules.version:
            self.rules = rules
            await self.dispatcher.configure(rules)

    async def _rebuild_then_manage(self) -> None:
        await self.rebuild.run(self.rules)
        await self.manager.run()

    async def drain(self) -> None:
        await self.worker.drain(self._config.worker.drain_timeout)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.worker.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        for executor in self._executors.values():
            with contextlib.suppress(Exception):
                await executor.close()

    def _run(self, coroutine: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"fairlead-{name}")
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = error
            log.critical("%s broke down", task.get_name(), exc_info=error)
