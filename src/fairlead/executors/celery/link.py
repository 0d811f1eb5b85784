"""A process's link to one Celery app: sends tasks, hears of their ends, and notices when their workers are gone.

All services that are tasks of this app share it. What blocks is done in threads; everything else on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fairlead.domain.retry import Failure
from fairlead.executors.celery import lookout
from fairlead.executors.celery.answers import ENDED, STARTED, Meta
from fairlead.executors.celery.errands import Errand, Errands
from fairlead.executors.celery.results import Results, results_of
from fairlead.executors.threads import Threads

log = logging.getLogger(__name__)

T = TypeVar("T")
AT_ONCE = 8
"""Tasks that are sent side by side; a broker that hangs would else take a thread for each call."""
LOOK_EVERY, LOOKS = 2.0, 5
"""Seconds between asking the workers, or as often as this within a short `lost_after`."""


@dataclass(eq=False, slots=True)
class Wait:
    """For the end of one task: what Celery said of it, or the failure that its worker is gone."""

    errand: Errand
    progressed: Callable[[Meta], None]
    ended: asyncio.Future[Meta | Failure] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Link:
    def __init__(self, app: Any, lost_after: float) -> None:
        self.app = app
        self._lost_after = lost_after
        self._errands: Errands | None = None
        self._results: Results | None = None
        self._silence = lookout.Silence(lost_after)
        self._threads = Threads()
        self._sending = asyncio.Semaphore(AT_ONCE)
        self._waits: dict[str, Wait] = {}
        self._looking: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ one task, from its sending to its end

    async def errand_of(self, key: str) -> Errand:
        return await self._blocking(lambda: self._kept().of(key))

    def wait_for(self, errand: Errand, progressed: Callable[[Meta], None]) -> Wait:
        """Before it is sent, so that no end is missed."""
        if self._results is None:
            loop = asyncio.get_running_loop()
            self._results = results_of(self.app)
            self._results.start(lambda task_id, meta: _on(loop, self._heard, task_id, meta))
        wait = self._waits[errand.task_id] = Wait(errand, progressed)
        self._results.watch(errand.task_id)
        if self._looking is None and self._lost_after:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="fairlead-celery-lookout")
        return wait

    def wait_no_more(self, wait: Wait) -> None:
        task_id = wait.errand.task_id
        if self._waits.get(task_id) is wait:
            del self._waits[task_id]
            self._silence.forget(task_id)
            if self._results is not None:
                self._results.unwatch(task_id)

    async def send(
        self,
        errand: Errand,
        task: str,
        kwargs: Mapping[str, Any],
        timeout: float,
        *,
        headers: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """Once it is on its way it is kept, so that whoever takes the job up again finds it."""

        def send() -> None:
            self.app.send_task(
                task,
                kwargs=dict(kwargs),
                task_id=errand.task_id,
                serializer="json",
                # We listen ourselves; the worker is told by the header to keep the result.
                ignore_result=True,
                headers={**headers, "ignore_result": False},
                # Where Celery can, it stops the task itself at the call's deadline, whatever became of us.
                expires=timeout,
                time_limit=timeout,
                **{**_declared(self.app.tasks.get(task), elsewhere="queue" in options), **options},
            )
            self._kept().keep(errand, timeout)

        async with self._sending:
            await self._blocking(send)

    async def give_up(self, errand: Errand, *, revoke: bool) -> bool:
        """The next attempt is to be a task of its own. False: it is somebody else's by now, and goes on."""

        def give_up() -> bool:
            if not self._kept().give_up(errand):
                return False
            if revoke:
                self.app.control.revoke(errand.task_id, terminate=True)
            return True

        return await self._blocking(give_up)

    async def is_active(self, task_id: str) -> bool:
        sighting = await self._blocking(lambda: lookout.look(self.app, [task_id]))
        return sighting.having.get(task_id, ("", ""))[1] == lookout.ACTIVE

    def spawn(self, coroutine: Any) -> asyncio.Task[None]:
        """What goes on after a call was given up."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        return task

    # ------------------------------------------------------------ what is heard

    def _heard(self, task_id: str, meta: Meta) -> None:
        wait = self._waits.get(task_id)
        if wait is None or wait.ended.done():
            return
        if meta["status"] in ENDED:
            wait.ended.set_result(meta)
            return
        if meta["status"] == STARTED and isinstance(meta.get("result"), dict):
            self._silence.seen(task_id, str(meta["result"].get("hostname", "that had it")))
        wait.progressed(meta)

    async def _look(self) -> None:
        """While anything is open. Short calls end before anybody is asked."""
        self._silence.begin()
        try:
            while self._waits:
                await asyncio.sleep(min(LOOK_EVERY, self._lost_after / LOOKS))
                await self._look_once()
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        asked = [task_id for task_id, wait in self._waits.items() if not wait.ended.done()]
        if not asked:
            return
        try:
            sighting = await self._blocking(lambda: lookout.look(self.app, asked))
        except Exception as error:  # the broker is away: who is silent cannot be told
            log.info("the Celery workers cannot be asked: %s", error)
            self._silence.begin()
            return
        for task_id, failure in self._silence.lost(sighting, asked):
            wait = self._waits.get(task_id)
            if wait is not None and not wait.ended.done():
                wait.ended.set_result(failure)

    # ------------------------------------------------------------ threads

    def _kept(self) -> Errands:
        if self._errands is None:
            self._errands = Errands(self.app)
        return self._errands

    async def _blocking(self, work: Callable[[], T]) -> T:
        value, failed = await self._threads.call(work)
        if failed is not None:
            raise failed
        result: T = value
        return result

    async def close(self) -> None:
        for task in (*self._stopping, *filter(None, [self._looking])):
            task.cancel()
        results, self._results = self._results, None
        if results is not None:
            await self._blocking(results.close)
        self._threads.close()


def _declared(task: Any, *, elsewhere: bool) -> dict[str, Any]:
    """What a task's own declaration says of its message: `delay` heeds it, `send_task` does so since Celery 5.7.
    Nothing for a task that this process has not imported."""
    heeded = ("priority",) if elsewhere else ("priority", "queue", "exchange", "routing_key")
    return {key: said for key in heeded if (said := getattr(task, key, None)) is not None}


def _on(loop: asyncio.AbstractEventLoop, heard: Callable[[str, Meta], None], task_id: str, meta: Meta) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(heard, task_id, meta)
