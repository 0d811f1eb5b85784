"""`app.sync`: the app's methods for code without an event loop. They run on an event loop in a background thread.

app = Fairlead()
job = app.sync.submit("thumbnail", {"path": "a.png"}, user_id="ada")
print(job.result(timeout=60))
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from fairlead.app.jobs import JobFilters
from fairlead.app.runtime import Runtime
from fairlead.app.turns.context_manager import Turn, TurnBlock, TurnOptions
from fairlead.app.turns.turns import Turns
from fairlead.app.turns.waiting import OnPosition
from fairlead.domain.output import Chunk, Position, Restart
from fairlead.domain.pagination import Page
from fairlead.domain.submission import Submission
from fairlead.domain.views import JobView, RetriedJob, Why
from fairlead.errors import FairleadError, Unavailable

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.app.handle import JobHandle

log = logging.getLogger("fairlead.jobs")

T = TypeVar("T")


class SyncJobHandle:
    def __init__(self, sync: SyncFairlead, handle: JobHandle) -> None:
        self._sync = sync
        self._handle = handle
        self.id = handle.id

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the job, and return the data of its last step. Raises JobFailed or JobCancelled, and ResultTimeout
        after `timeout` seconds."""
        return self._sync.call(self._handle.result(timeout))

    def stream(self, after: Position | str | None = None) -> Iterator[Chunk | Restart]:
        """Iterate over the output of the job while it runs; see `JobHandle.stream`."""
        output = self._handle.stream(after)
        try:
            while (each := self._sync.call(_next(output))) is not None:
                yield each
        finally:
            self._sync.call(output.aclose())

    def get(self) -> JobView:
        return self._sync.get(self.id)

    def cancel(self) -> JobView:
        return self._sync.cancel(self.id)

    def resume(self) -> JobView:
        return self._sync.resume(self.id)

    def retry(self, *, from_start: bool = False) -> RetriedJob:
        return self._sync.retry(self.id, from_start=from_start)

    def retry_step(self, step: int) -> JobView:
        return self._sync.retry_step(self.id, step)

    def __repr__(self) -> str:
        return f"SyncJobHandle({self.id!r})"


class SyncFairlead:
    """The methods of the app for code in threads. The app is opened on first use, and many threads may share it.
    Closing it is optional, since accepted jobs are committed."""

    def __init__(self, app: Fairlead, runtime: Runtime) -> None:
        self._app = app
        self._runtime = runtime
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, feature_name: str, input_data: Mapping[str, Any] | None = None, **options: Any) -> SyncJobHandle:
        """Accept one job; it is committed when this returns. `options` are the arguments of `Fairlead.submit`."""
        return SyncJobHandle(self, self.call(self._app.submit(feature_name, input_data, **options)))

    def submit_many(
        self, submissions: Sequence[Submission], *, idempotency_key: str | None = None
    ) -> list[SyncJobHandle]:
        handles = self.call(self._app.submit_many(submissions, idempotency_key=idempotency_key))
        return [SyncJobHandle(self, handle) for handle in handles]

    def push_task(
        self, queue: str, payload: Mapping[str, Any], priority: str = "low", *, idempotency_key: str | None = None
    ) -> bool:
        """Submit a job as TaskFlow's `push_task` does; see `Fairlead.push_task`."""
        try:
            return self.call(self._app.push_task(queue, payload, priority, idempotency_key=idempotency_key))
        except Unavailable as error:  # the database could not be opened
            log.error("push_task to %r: %s", queue, error)
            return False

    def get(self, job_id: str) -> JobView:
        return self.call(self._app.get(job_id))

    def list_jobs(self, **filters: Unpack[JobFilters]) -> Page[JobView]:
        """List jobs, newest first; `filters` are the arguments of `Fairlead.list_jobs`."""
        return self.call(self._app.list_jobs(**filters))

    def why(self, job_id: str) -> Why:
        return self.call(self._app.why(job_id))

    def cancel(self, job_id: str, *, who: str | None = None) -> JobView:
        return self.call(self._app.cancel(job_id, who=who))

    def resume(self, job_id: str, *, who: str | None = None) -> JobView:
        return self.call(self._app.resume(job_id, who=who))

    def retry(self, job_id: str, *, from_start: bool = False, who: str | None = None) -> RetriedJob:
        return self.call(self._app.retry(job_id, from_start=from_start, who=who))

    def retry_step(self, job_id: str, step: int, *, who: str | None = None) -> JobView:
        return self.call(self._app.retry_step(job_id, step, who=who))

    @property
    def turns(self) -> Turns:
        return self._app.turns

    def turn_block(self, options: TurnOptions, on_position: OnPosition | None) -> SyncTurnBlock:
        return SyncTurnBlock(self, options, on_position)

    @contextlib.contextmanager
    def running(self) -> Iterator[SyncFairlead]:
        """Run the whole queue in the background thread, as `async with app.running()` does."""
        loop = self._started(opens=False)
        context = self._app.running()
        asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
            self._stop_loop()

    def close(self) -> None:
        """Close the app and end the thread. The next call of any method opens the app again."""
        loop = self._loop
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._app.close(), loop).result()
            self._stop_loop()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the app on its event loop, and return the result."""
        try:
            loop = self._started()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which the app was opened. If the app is not open, it is opened on a loop in the background
        thread."""
        return self._runtime.loop or self._started()

    def _started(self, *, opens: bool = True) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is not None:
                return self._loop
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="fairlead-sync", daemon=True)
            thread.start()
            self._thread, self._loop = thread, loop
            if opens:
                try:
                    asyncio.run_coroutine_threadsafe(self._app.open(), loop).result()
                except BaseException:
                    self._stop_loop()
                    raise
                atexit.register(self._cancel_all)
            return loop

    def _cancel_all(self) -> None:
        """Stop the background thread when the interpreter exits. The interpreter's thread pools have ended by then, so
        the app cannot be closed properly. No job is lost, since accepted jobs are committed."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_cancel_tasks(), self._loop).result(timeout=5)
            self._stop_loop()

    def _stop_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        atexit.unregister(self._cancel_all)


class SyncTurnBlock:
    """The block of `with app.turn_sync(...)`: runs a `TurnBlock` on the app's event loop, which is in another
    thread."""

    def __init__(self, sync: SyncFairlead, options: TurnOptions, on_position: OnPosition | None) -> None:
        self._sync = sync
        self._options = options
        self._on_position = on_position
        self._block: TurnBlock | None = None

    def __enter__(self) -> Turn:
        loop = self._other_loop()
        positions: SimpleQueue[int | None] = SimpleQueue()
        on_position = None if self._on_position is None else positions.put
        block = self._block = TurnBlock(self._sync.turns, self._options, on_position, cancels=False)
        entering = asyncio.run_coroutine_threadsafe(block.__aenter__(), loop)
        entering.add_done_callback(lambda _: positions.put(None))
        try:
            while (position := positions.get()) is not None:
                if self._on_position is not None:
                    self._on_position(position)
        except BaseException:
            # The thread was interrupted, or its `on_position` failed: stop waiting.
            if not entering.cancel():
                _run(block.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None), loop)
            raise
        return entering.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._block is not None
        _run(self._block.__aexit__(kind, error, trace), self._sync.loop())

    def _other_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._sync.loop()
        try:
            current = asyncio.get_running_loop()
        except RuntimeError:
            return loop
        if current is loop:
            raise FairleadError("this thread runs the app's event loop: use `async with app.turn(...)` here")
        return loop


def _run(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(coroutine, loop).result()


async def _next(output: AsyncGenerator[Chunk | Restart, None]) -> Chunk | Restart | None:
    return await anext(output, None)


async def _cancel_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=2)
