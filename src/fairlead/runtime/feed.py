"""What one reader is told, in order: a snapshot of each thing that it follows, then what happens to it.

It is subscribed before the snapshot is read, so nothing that happens in between is missed. A SNAPSHOT comes again when
something may not have been heard, and that changed something. After a job's last event it is followed no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fairlead.errors import NotFound, RequestError
from fairlead.runtime import events, view
from fairlead.runtime.events import Event, Hub, Subscription, topic_of
from fairlead.runtime.view import JobView

MOST_WATCHED = 100
"""Jobs that one reader may watch by name."""
ERROR = "ERROR"
_WATCH, _UNWATCH, _REFUSE = "watch", "unwatch", "refuse"

Allowed = Callable[[JobView], bool]


class Truth(Protocol):
    """Where snapshots come from."""

    async def get(self, job_id: str) -> JobView: ...

    async def open_jobs(self, user_id: str) -> tuple[list[JobView], bool]:
        """Newest first, as many as a snapshot has room for; and whether there are more."""
        ...


class Left(Exception):
    """The reader itself went away."""


class Feed:
    """`allowed` says which jobs the reader may see; any other is not there for it. `looks` bounds how many feeds look
    at the truth at once when many have missed something."""

    def __init__(
        self, hub: Hub, truth: Truth, now: Callable[[], float], looks: asyncio.Semaphore, allowed: Allowed
    ) -> None:
        self._hub = hub
        self._truth = truth
        self.now = now
        self._looks = looks
        self._allowed = allowed
        self._reader = Subscription()
        self._jobs: dict[str, object] = {}
        """Watched by name, each with what was shown last; None if something was told since."""
        self._user_id: str | None = None
        self._shown: object = None

    @property
    def follows_nothing(self) -> bool:
        return not self._jobs and self._user_id is None

    # ------------------------------------------------------------ following

    async def watch(self, job_id: str) -> dict[str, Any]:
        """Its snapshot. Raises NotFound, and then it is not followed."""
        self._hub.follow(job_id, self._reader)
        self._jobs[job_id] = None
        try:
            job = await self._read(job_id)
        except BaseException:
            self.unwatch(job_id)
            raise
        if job.status.finished:
            self._reader.put(Event(events.ENDED, job_id, self.now(), "the job has ended"))
        elif job.user_id == self._user_id:
            self.unwatch(job_id)  # all that happens to it is told already
        return self._snapshot(job)

    def unwatch(self, job_id: str) -> None:
        if job_id in self._jobs:
            del self._jobs[job_id]
            self._hub.unfollow(job_id, self._reader)

    async def follow(self, user_id: str) -> dict[str, Any]:
        """A snapshot of the user's open jobs; then all that happens to any job of theirs is told."""
        self._user_id = user_id
        self._hub.follow(topic_of(user_id), self._reader)
        return await self._snapshot_of_user(user_id)

    def close(self) -> None:
        for job_id in list(self._jobs):
            self.unwatch(job_id)
        if self._user_id is not None:
            self._hub.unfollow(topic_of(self._user_id), self._reader)
            self._user_id = None

    # ------------------------------------------------------------ said by the reader, while somebody awaits `next`

    def ask_watch(self, job_id: str) -> None:
        self._ask(_WATCH, job_id)

    def ask_unwatch(self, job_id: str) -> None:
        self._ask(_UNWATCH, job_id)

    def refuse(self, code: str, message: str) -> None:
        """Answer with an error, in its turn."""
        self._reader.put(Event(_REFUSE, "", self.now(), message, {"code": code}))

    def leave(self) -> None:
        """Whoever awaits `next` hears `Left`."""
        self._reader.end(Left())

    def _ask(self, what: str, job_id: str) -> None:
        self._reader.put(Event(what, job_id, self.now(), ""))

    # ------------------------------------------------------------ telling

    async def next(self, heartbeat: float) -> dict[str, Any] | None:
        """What comes next, or None after `heartbeat` seconds without news. Raises TooSlow, Dismissed or Left, and
        NotFound of a job that was deleted meanwhile."""
        clock = asyncio.get_running_loop().time
        until = clock() + heartbeat
        while True:
            event = await self._reader.next(max(0.0, until - clock()))
            if event is None:
                return None
            said = await self._said(event)
            if said is not None:
                return said

    async def _said(self, event: Event) -> dict[str, Any] | None:
        if event.type in (_WATCH, _UNWATCH, _REFUSE):
            return await self._answer(event)
        if event.type == events.MISSED:
            return await self._look_again(event.job_id)
        if event.job_id in self._jobs:
            self._jobs[event.job_id] = None
        elif self._user_id is None:
            return None  # unwatched since
        self._shown = None
        if event.type == events.ENDED:
            return await self._ending(event.job_id)
        if event.type in events.TERMINAL:
            self.unwatch(event.job_id)
        return event.as_dict()

    async def _answer(self, event: Event) -> dict[str, Any] | None:
        if event.type == _REFUSE:
            return self.error(event.message, event.details["code"])
        if event.type == _UNWATCH:
            self.unwatch(event.job_id)
            return None
        if len(self._jobs) >= MOST_WATCHED and event.job_id not in self._jobs:
            return self.error(f"at most {MOST_WATCHED} jobs over one socket", "too_many_watched", event.job_id)
        try:
            return await self.watch(event.job_id)
        except RequestError as error:
            return self.error(error.message, error.code, event.job_id)

    async def _ending(self, job_id: str) -> dict[str, Any] | None:
        job = await self._in_turn(lambda: self._read_again(job_id))
        if not job.status.finished:
            return None
        self.unwatch(job_id)
        return view.ending(job, self.now())

    async def _look_again(self, topic: str) -> dict[str, Any] | None:
        if topic in self._jobs:
            before = self._jobs[topic]
            job = await self._in_turn(lambda: self._read_again(topic))
            if job.status.finished:
                self.unwatch(topic)
                return view.ending(job, self.now())
            return self._snapshot(job) if before is None or before != _state(job) else None
        user_id = self._user_id
        if user_id is None or topic != topic_of(user_id):
            return None
        before = self._shown
        said = await self._in_turn(lambda: self._snapshot_of_user(user_id))
        return said if before is None or before != self._shown else None

    # ------------------------------------------------------------ looking

    async def _read(self, job_id: str) -> JobView:
        job = await self._truth.get(job_id)
        if not self._allowed(job):
            raise NotFound(f"there is no job {job_id}")
        return job

    async def _read_again(self, job_id: str) -> JobView:
        try:
            return await self._truth.get(job_id)
        except NotFound:
            self.unwatch(job_id)
            raise

    async def _in_turn(self, look: Callable[[], Awaitable[Any]]) -> Any:
        async with self._looks:
            return await look()

    def _snapshot(self, job: JobView) -> dict[str, Any]:
        if job.job_id in self._jobs:
            self._jobs[job.job_id] = _state(job)
        return {
            "type": events.SNAPSHOT,
            "job_id": job.job_id,
            "at": events.iso(self.now()),
            "message": f"the job is {job.status}",
            "job": job.as_dict(),
        }

    async def _snapshot_of_user(self, user_id: str) -> dict[str, Any]:
        jobs, cut = await self._truth.open_jobs(user_id)
        # What has ended while we looked is told next, and must not count as open.
        ended = {event.job_id for event in self._reader.waiting() if event.type in events.TERMINAL}
        self._hub.opened(user_id, (job.job_id for job in jobs if job.job_id not in ended))
        self._shown = [_state(job) for job in jobs]
        return self.snapshot_of_many(jobs, cut, user_id)

    def snapshot_of_many(self, jobs: list[JobView], cut: bool, user_id: str | None) -> dict[str, Any]:
        return {
            "type": events.SNAPSHOT,
            "user_id": user_id,
            "at": events.iso(self.now()),
            "message": f"open jobs: {len(jobs)}" + (", the newest" if cut else ""),
            "jobs": [job.as_dict() for job in jobs],
            "cut": cut,
        }

    def error(self, message: str, code: str, job_id: str | None = None) -> dict[str, Any]:
        which = {"job_id": job_id} if job_id is not None else {}
        return {"type": ERROR, **which, "at": events.iso(self.now()), "message": message, "code": code}


def _state(job: JobView) -> object:
    return (job.job_id, job.status, job.current_step_index, job.priority, job.started_at)
