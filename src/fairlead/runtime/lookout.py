"""Looks at the truth for all who watch in this process, together: whatever message was lost, nobody misses an end.

A process without the line hears nothing of what others do: there it looks often, and for any change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fairlead.domain.job import OPEN, Job
from fairlead.errors import Unavailable
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import MOST_FOLLOWED, Hub, topic_of
from fairlead.store.port import JobFilter, Store

log = logging.getLogger(__name__)

EVERY = 5.0
EVERY_WHEN_DEAF = 0.25
BATCH = 500
# Ten thousand watched jobs take a while to read: it may have this share of the event loop's time.
SHARE = 0.05

State = tuple[object, ...]


class Lookout:
    """`deaf` says whether this process hears of what others do only by looking."""

    def __init__(self, store: Store, hub: Hub, clock: Clock, deaf: Callable[[], bool]) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock
        self._deaf = deaf
        self._seen: dict[str, State] = {}
        """By topic: how it was at the last look. Empty while this process hears of changes."""

    async def run(self) -> None:
        timer = asyncio.get_running_loop().time
        took = 0.0
        while True:
            every = EVERY_WHEN_DEAF if self._deaf() else EVERY
            await asyncio.sleep(max(every, took / SHARE))
            begun = timer()
            try:
                await self.look()
            except Unavailable as error:
                log.debug("nothing is seen of the watched jobs: %s", error)
            except Exception:
                log.exception("looking at the watched jobs failed")
            took = timer() - begun

    async def look(self) -> None:
        seen: dict[str, State] = {}
        watched = self._hub.jobs_here()
        for begin in range(0, len(watched), BATCH):
            batch = watched[begin : begin + BATCH]
            found = await self._store.get_jobs(batch)
            now = self._clock.now()
            for job_id in batch:
                job = found.get(job_id)
                if job is None or job.status.finished:
                    self._hub.ended(job_id, now)
                else:
                    seen[job_id] = _state(job)
        if self._deaf():
            seen |= await self._users()
            self._tell_changes(seen)
        else:
            self._seen = {}

    async def _users(self) -> dict[str, State]:
        seen: dict[str, State] = {}
        for user_id in self._hub.users_here():
            where = JobFilter(user_id, OPEN)
            jobs = await self._store.list_jobs(where, before_seq=None, limit=MOST_FOLLOWED)
            seen[topic_of(user_id)] = tuple(map(_state, jobs))
        return seen

    def _tell_changes(self, seen: dict[str, State]) -> None:
        """Those seen for the first time too: something may have happened since their snapshot was read."""
        now = self._clock.now()
        for topic, state in seen.items():
            if self._seen.get(topic) != state:
                self._hub.missed(topic, now)
        self._seen = seen


def _state(job: Job) -> State:
    return (job.id, job.status, job.step, job.run, job.priority)
