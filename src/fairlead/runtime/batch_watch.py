"""Following a batch: one look at the truth now and then serves everybody in this process who follows it.

There may be ten thousand jobs in it, in many processes, and what matters is how many have ended. So nobody subscribes
to its jobs: counting them is one query, which may have a small share of the time that passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from fairlead.runtime.batch_view import BatchView
from fairlead.runtime.batches import Batches
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Dismissed, Hub, iso

BATCH = "BATCH"
BATCH_PROGRESS = "BATCH_PROGRESS"
BATCH_COMPLETE = "BATCH_COMPLETE"

TELL_EVERY = 1.0
LOOK_EVERY = 0.25
SHARE = 0.05
FORGET_AFTER = 10.0


class BatchWatch:
    def __init__(self, batches: Batches, hub: Hub, clock: Clock) -> None:
        self._batches = batches
        self._hub = hub
        self._clock = clock
        self._looks: dict[str, _Look] = {}

    async def wait(self, batch_id: str, timeout: float | None) -> BatchView:
        """The batch when all of it has ended, or as it is after `timeout` seconds or when this process stops."""
        timer = asyncio.get_running_loop().time
        until = None if timeout is None else timer() + timeout
        with self._hub.present() as reader:
            after = timer()
            while True:
                look = await self._look(batch_id, after)
                batch, pause, after = look.batch, look.pause, look.renewed
                left = None if until is None else until - timer()
                if batch.finished or (left is not None and left <= 0):
                    return batch
                try:
                    await reader.next(pause if left is None else min(pause, left))
                except Dismissed:
                    return batch

    async def follow(self, batch_id: str, heartbeat: float) -> AsyncIterator[dict[str, Any] | None]:
        """BATCH as it is, BATCH_PROGRESS at most once a second when something changed, BATCH_COMPLETE, the end. None
        after `heartbeat` seconds without news."""
        timer = asyncio.get_running_loop().time
        with self._hub.present() as reader:
            look = await self._look(batch_id, timer())
            batch = look.batch
            yield self._told(BATCH, batch, "the batch as it is", batch=batch.as_dict())
            told, told_at, spoke_at = batch.counts, timer(), timer()
            while not batch.finished:
                await reader.next(look.pause)
                look = await self._look(batch_id, look.renewed)
                batch = look.batch
                now = timer()
                if not batch.finished and batch.counts != told and now - told_at >= TELL_EVERY:
                    yield self._told(BATCH_PROGRESS, batch, f"{batch.progress:.0%} has ended")
                    told, told_at, spoke_at = batch.counts, now, now
                elif now - spoke_at >= heartbeat:
                    yield None
                    spoke_at = now
            yield self._told(BATCH_COMPLETE, batch, "every item has ended", finished_at=iso(batch.finished_at))

    def _told(self, kind: str, seen: BatchView, message: str, **more: Any) -> dict[str, Any]:
        return {
            "type": kind,
            "batch_id": seen.batch_id,
            "at": iso(self._clock.now()),
            "message": message,
            "total": seen.total,
            "counts": seen.counts,
            "progress": seen.progress,
            **more,
        }

    async def _look(self, batch_id: str, after: float) -> _Look:
        """One that began then or later. One at a time is under way: who comes meanwhile waits for it, and then all of
        them share the next."""
        timer = asyncio.get_running_loop().time
        while True:
            look = self._looks.get(batch_id)
            if look is None or (look.began < after and look.answer.done()):
                now = timer()
                self._looks = {name: each for name, each in self._looks.items() if each.began > now - FORGET_AFTER}
                look = self._looks[batch_id] = _Look(self._batches.get(batch_id), timer)
            # Whoever leaves must not take the answer from the others.
            await asyncio.wait([look.answer])
            if look.began >= after:
                look.answer.result()
                return look


class _Look:
    """Begun once, awaited by all who ask meanwhile. `pause` is how long it is good for."""

    def __init__(self, asking: Any, timer: Callable[[], float]) -> None:
        self.began = timer()
        self.pause = LOOK_EVERY
        self._timer = timer
        self.answer: asyncio.Task[BatchView] = asyncio.ensure_future(asking)
        self.answer.add_done_callback(self._ended)

    @property
    def batch(self) -> BatchView:
        return self.answer.result()

    @property
    def renewed(self) -> float:
        """One that began after this tells something new; so those who follow one batch come to look together."""
        return self.began + self.pause / 2

    def _ended(self, answer: asyncio.Task[BatchView]) -> None:
        self.pause = max(LOOK_EVERY, (self._timer() - self.began) / SHARE)
        if not answer.cancelled():
            answer.exception()  # whoever asked may have left, and then nobody else would take note of it
