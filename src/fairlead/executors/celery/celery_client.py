"""Sends the tasks of one Celery app, waits for their results, and detects that Celery workers are gone.

All services whose tasks belong to the same app share one client. Blocking calls run in threads, everything else on the
event loop.

When a Fairlead worker is lost, its Celery task keeps running. `TaskRegistry` records in Redis which task runs which
step, so that the next Fairlead worker of the job waits for that task instead of sending a second one. This needs a
result backend in Redis; with any other backend, no task is registered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from fairlead.domain.retry import WORKER_DIED, Failure
from fairlead.executors.celery.results import ENDED, STARTED, Meta, ResultBackend, results_of
from fairlead.executors.function import Threads

PREFIX = "fairlead-celery:"
SLACK = 60.0
_GIVE_UP = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


@dataclass(frozen=True, slots=True)
class RegisteredTask:
    """The Celery task of a step. `key` identifies the step, in all its attempts. `owner` is the call that waits for the
    task now."""

    key: str
    task_id: str = field(default_factory=lambda: str(uuid4()))
    owner: str = field(default_factory=lambda: uuid4().hex)
    taken_over: bool = False

    @property
    def text(self) -> str:
        return f"{self.task_id} {self.owner}"


class TaskRegistry:
    """Records in Redis which Celery task runs which step. The methods block: call them in a thread."""

    def __init__(self, app: Any) -> None:
        from celery.backends.redis import RedisBackend

        self._backend = app.backend if isinstance(app.backend, RedisBackend) else None
        self._kept_for = _seconds(app.conf.result_expires)

    def of(self, key: str) -> RegisteredTask:
        """Take over the task that already runs for this step. If there is none, create a new task, which is not
        registered yet."""
        if self._backend is not None and (stored := self._backend.client.get(PREFIX + key)):
            registered = RegisteredTask(key, stored.decode().partition(" ")[0], taken_over=True)
            self._backend.client.set(PREFIX + key, registered.text, keepttl=True, xx=True)
            return registered
        return RegisteredTask(key)

    def keep(self, registered: RegisteredTask, timeout: float) -> None:
        """Register the task for about twice its timeout, but not for longer than Celery keeps its result."""
        if self._backend is not None:
            seconds = 2 * timeout + SLACK
            if self._kept_for is not None:
                seconds = min(seconds, self._kept_for)
            self._backend.client.set(PREFIX + registered.key, registered.text, px=max(1, int(seconds * 1000)))

    def give_up(self, registered: RegisteredTask) -> bool:
        """Unregister the task. Returns False if another call has taken over the task."""
        if self._backend is None:
            return True
        client = self._backend.client
        return bool(client.eval(_GIVE_UP, 1, PREFIX + registered.key, registered.text)) or not client.exists(
            PREFIX + registered.key
        )


def _seconds(expires: Any) -> float | None:
    """Convert a setting of Celery, a number or a timedelta, to seconds. None and zero mean forever."""
    seconds = expires.total_seconds() if hasattr(expires, "total_seconds") else float(expires or 0)
    return seconds or None


ANSWER_WITHIN = 1.0
ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Survey:
    """What Celery workers replied to one query: which workers replied, and for each task that one of them has, the
    worker and the state."""

    workers: frozenset[str] = frozenset()
    tasks: dict[str, tuple[str, str]] = field(default_factory=dict)


def look(app: Any, task_ids: Iterable[str]) -> Survey:
    """Ask all Celery workers at once which of these tasks they have, and in which state. Blocks for about a second."""
    replies = app.control.broadcast("query_task", arguments={"ids": list(task_ids)}, reply=True, timeout=ANSWER_WITHIN)
    workers: set[str] = set()
    tasks: dict[str, tuple[str, str]] = {}
    for reply in replies or ():
        for worker, held in reply.items():
            workers.add(worker)
            for task_id, (state, _) in held.items() if isinstance(held, dict) and "error" not in held else ():
                tasks[task_id] = (worker, state)
    return Survey(frozenset(workers), tasks)


def known_tasks(app: Any) -> dict[str, frozenset[str]]:
    """For each Celery worker that replies, the names of the tasks that it can run. Blocks for about a second."""
    replies = app.control.broadcast("registered", reply=True, timeout=ANSWER_WITHIN)
    return {
        worker: frozenset(str(task).partition(" ")[0] for task in tasks)
        for reply in replies or ()
        for worker, tasks in reply.items()
        if isinstance(tasks, list)
    }


class Silence:
    """Decides which tasks are lost. A task that a Celery worker has reported is lost once no worker has reported it for
    `lost_after` seconds. If no worker has replied to any query for that long, all tasks are lost."""

    def __init__(self, lost_after: float) -> None:
        self._lost_after = lost_after
        self._holders: dict[str, tuple[str, float]] = {}
        self._answered_at = time.monotonic()

    def begin(self) -> None:
        """Forget all measurements, because workers have not been queried for a while."""
        self._holders.clear()
        self._answered_at = time.monotonic()

    def seen(self, task_id: str, worker: str) -> None:
        self._holders[task_id] = (worker, time.monotonic())

    def forget(self, task_id: str) -> None:
        self._holders.pop(task_id, None)

    def lost(self, survey: Survey, task_ids: Iterable[str]) -> Iterator[tuple[str, Failure]]:
        """The tasks in `task_ids` that are lost, with the failure of each. `survey` has the replies to the newest
        query."""
        now = time.monotonic()
        if survey.workers:
            self._answered_at = now
        for task_id, (worker, _) in survey.tasks.items():
            self.seen(task_id, worker)
        none_replies = now - self._answered_at >= self._lost_after
        for task_id in task_ids:
            worker, at = self._holders.get(task_id, ("", now))
            if worker and now - at >= self._lost_after:
                yield task_id, Failure(WORKER_DIED, f"the Celery worker {worker} is gone, and its task with it", True)
            elif none_replies:
                yield task_id, Failure(WORKER_DIED, f"no Celery worker has replied for {self._lost_after:g} s", True)


log = logging.getLogger("fairlead.celery")

T = TypeVar("T")
AT_ONCE = 8
"""The number of tasks that are sent at the same time. Without this limit, a broker that hangs would block one thread
per call."""
LOOK_EVERY, LOOKS = 2.0, 5
"""The pause before each query of the Celery workers is `LOOK_EVERY` seconds, or `lost_after / LOOKS` if that is
less."""


@dataclass(eq=False, slots=True)
class Wait:
    """The wait for one task. It ends with the result metadata of the task, or with a failure if the task's worker is
    gone."""

    registered: RegisteredTask
    progressed: Callable[[Meta], None]
    ended: asyncio.Future[Meta | Failure] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class CeleryClient:
    def __init__(self, app: Any, lost_after: float, now: Callable[[], float]) -> None:
        self.app = app
        self._now = now
        self._lost_after = lost_after
        self._registry: TaskRegistry | None = None
        self._results: ResultBackend | None = None
        self._silence = Silence(lost_after)
        self._threads = Threads()
        self._sending = asyncio.Semaphore(AT_ONCE)
        self._waits: dict[str, Wait] = {}
        self._looking: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ one task

    async def task_for(self, key: str) -> RegisteredTask:
        return await self._blocking(lambda: self._tasks().of(key))

    def wait_for(self, registered: RegisteredTask, progressed: Callable[[Meta], None]) -> Wait:
        """Start to wait for a task. Call this before the task is sent, so that no result is missed."""
        if self._results is None:
            loop = asyncio.get_running_loop()
            self._results = results_of(self.app)
            self._results.start(lambda task_id, meta: _on(loop, self._on_state, task_id, meta))
        wait = self._waits[registered.task_id] = Wait(registered, progressed)
        self._results.watch(registered.task_id)
        if self._looking is None and self._lost_after:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="fairlead-celery-lookout")
        return wait

    def stop_waiting(self, wait: Wait) -> None:
        task_id = wait.registered.task_id
        if self._waits.get(task_id) is wait:
            del self._waits[task_id]
            self._silence.forget(task_id)
            if self._results is not None:
                self._results.unwatch(task_id)

    async def send(
        self,
        registered: RegisteredTask,
        task: str,
        kwargs: Mapping[str, Any],
        timeout: float,
        *,
        headers: Mapping[str, Any],
        **options: Any,
    ) -> None:
        """Send the task and register it, so that the next worker of the job finds it."""

        def send() -> None:
            self.app.send_task(
                task,
                kwargs=dict(kwargs),
                task_id=registered.task_id,
                serializer="json",
                # Fairlead subscribes to the result, so Celery must not. The header makes the worker store the result.
                ignore_result=True,
                headers={**headers, "ignore_result": False},
                # Celery drops or stops the task at the call's deadline even if this process is gone by then. If
                # `expires` were a number of seconds, Celery would compute the deadline by this machine's clock.
                expires=datetime.fromtimestamp(self._now() + timeout, UTC),
                time_limit=timeout,
                **{**_declared(self.app.tasks.get(task), elsewhere="queue" in options), **options},
            )
            self._tasks().keep(registered, timeout)

        async with self._sending:
            await self._blocking(send)

    async def give_up(self, registered: RegisteredTask, *, revoke: bool) -> bool:
        """Unregister the task, so that the next attempt of its step sends a new one. With `revoke`, also stop the task.
        Returns False, and does nothing, if another call has taken over the task."""

        def give_up() -> bool:
            if not self._tasks().give_up(registered):
                return False
            if revoke:
                self.app.control.revoke(registered.task_id, terminate=True)
            return True

        return await self._blocking(give_up)

    async def is_active(self, task_id: str) -> bool:
        survey = await self._blocking(lambda: look(self.app, [task_id]))
        return survey.tasks.get(task_id, ("", ""))[1] == ACTIVE

    def spawn(self, coroutine: Any) -> asyncio.Task[None]:
        """Run a coroutine as a task that continues after its call was abandoned."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
        return task

    # ------------------------------------------------------------ states and workers

    def _on_state(self, task_id: str, meta: Meta) -> None:
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
        """While calls wait for their tasks, ask the Celery workers at intervals which tasks they have, so that lost
        tasks are noticed. A short call ends before the first query."""
        self._silence.begin()
        try:
            while self._waits:
                await asyncio.sleep(min(LOOK_EVERY, self._lost_after / LOOKS))
                await self._look_once()
        finally:
            self._looking = None

    async def _look_once(self) -> None:
        task_ids = [task_id for task_id, wait in self._waits.items() if not wait.ended.done()]
        if not task_ids:
            return
        try:
            survey = await self._blocking(lambda: look(self.app, task_ids))
        except Exception as error:  # the broker may be down, which tells nothing about the workers
            log.info("the Celery workers cannot be queried: %s", error)
            self._silence.begin()
            return
        for task_id, failure in self._silence.lost(survey, task_ids):
            wait = self._waits.get(task_id)
            if wait is not None and not wait.ended.done():
                wait.ended.set_result(failure)

    # ------------------------------------------------------------ threads

    def _tasks(self) -> TaskRegistry:
        if self._registry is None:
            self._registry = TaskRegistry(self.app)
        return self._registry

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
    """The options from the declaration of the task. They are passed explicitly, because `send_task` ignores them before
    Celery 5.7. With `elsewhere`, the call names a queue itself, and the declared routing is left out. Empty for a task
    that this process has not imported."""
    names = ("priority",) if elsewhere else ("priority", "queue", "exchange", "routing_key")
    return {key: value for key in names if (value := getattr(task, key, None)) is not None}


def _on(loop: asyncio.AbstractEventLoop, on_state: Callable[[str, Meta], None], task_id: str, meta: Meta) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(on_state, task_id, meta)
