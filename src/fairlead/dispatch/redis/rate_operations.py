"""The operations of the Redis dispatcher that concern rates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.dispatch.rates import Rest, Sent, Spent
from fairlead.dispatch.redis.codec import Arg
from fairlead.dispatch.redis.rates import RateTimers, rest_args, sent_args, spent_args
from fairlead.dispatch.redis.script_runner import ScriptRunner
from fairlead.domain.fair_share import micros
from fairlead.errors import Unavailable


class RateOperations:
    _scopes: ScriptRunner

    def _announce(self, replies: Iterable[Sequence[Any]]) -> None:
        raise NotImplementedError

    async def _rebuild(self, script: str, scope: str, args: list[Arg]) -> bool:
        raise NotImplementedError

    def _database(self) -> float:
        raise NotImplementedError

    def _set_timers(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers = self._scopes.timers = RateTimers(self._look)

    async def _close_timers(self) -> None:
        self._timers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _look(self, scope: str) -> None:
        """A rate of this scope may allow further steps: wake a worker, in this process or another."""
        task = asyncio.get_running_loop().create_task(self._look_at(scope), name="fairlead-rates")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_at(self, scope: str) -> None:
        with contextlib.suppress(Unavailable):  # workers also claim now and then without a wakeup
            self._announce((await self._scopes.run("end_holds", {scope: []})).values())

    async def sent(self, reports: Sequence[Sent]) -> None:
        by_scope: dict[str, list[Sent]] = {}
        for report in reports:
            for scope in {self._scopes.of(report.service), report.scope or self._scopes.of(report.service)}:
                by_scope.setdefault(scope, []).append(report)
        await self._run_each("sent", {scope: sent_args(some) for scope, some in by_scope.items()})

    async def rest(self, rests: Sequence[Rest]) -> None:
        by_scope: dict[str, list[Rest]] = {}
        for rest in rests:
            by_scope.setdefault(self._scopes.of(rest.service), []).append(rest)
        await self._run_each("rest", {scope: rest_args(some) for scope, some in by_scope.items()})

    async def _run_each(self, script: str, args: Mapping[str, list[Arg]]) -> None:
        self._announce((await self._scopes.run(script, args)).values())

    async def restore_spent(self, scope: str, epoch: int, calls: Sequence[Spent]) -> bool:
        args: list[Arg] = [epoch, micros(self._database()), *spent_args(calls)]
        return await self._rebuild("restore_spent", scope, args)
