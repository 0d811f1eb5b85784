"""The synchronous front: the same calls for code without an event loop. One loop, in one thread, for the whole process.

app = Fairlead()
job = app.sync.submit("thumbnail", {"path": "a.png"}, user_id="ada")
print(job.result(timeout=60))
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.domain.job import JobStatus
from fairlead.runtime.paging import Page
from fairlead.runtime.submission import Submission
from fairlead.runtime.view import JobView
from fairlead.runtime.why import Why

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.handle import JobHandle

T = TypeVar("T")


class SyncJobHandle:
    def __init__(self, front: SyncFairlead, handle: JobHandle) -> None:
        self._front = front
        self._handle = handle
        self.id = handle.id

    def result(self, timeout: float | None = None) -> Any:
        """The last step's data. Raises JobFailed, JobCancelled, or ResultTimeout after `timeout` seconds."""
        return self._front.call(self._handle.result(timeout))

    def get(self) -> JobView:
        return self._front.get(self.id)

    def cancel(self) -> JobView:
        return self._front.cancel(self.id)

    def resume(self) -> JobView:
        return self._front.resume(self.id)

    def retry_step(self, step: int) -> JobView:
        return self._front.retry_step(self.id, step)

    def __repr__(self) -> str:
        return f"SyncJobHandle({self.id!r})"


class SyncFairlead:
    """Opens the app on first use. Safe to use from many threads. Need not be closed: what it accepted is committed."""

    def __init__(self, app: Fairlead) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, feature_name: str, input_data: Mapping[str, Any] | None = None, **options: Any) -> SyncJobHandle:
        """Accept one job; `options` are those of `Fairlead.submit`. When this returns, it is committed."""
        return SyncJobHandle(self, self.call(self._app.submit(feature_name, input_data, **options)))

    def submit_many(
        self, submissions: Sequence[Submission], *, idempotency_key: str | None = None
    ) -> list[SyncJobHandle]:
        handles = self.call(self._app.submit_many(submissions, idempotency_key=idempotency_key))
        return [SyncJobHandle(self, handle) for handle in handles]

    def get(self, job_id: str) -> JobView:
        return self.call(self._app.get(job_id))

    def list_jobs(
        self,
        *,
        user_id: str | None = None,
        status: JobStatus | None = None,
        feature_name: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[JobView]:
        asked = self._app.list_jobs(
            user_id=user_id,
            status=status,
            feature_name=feature_name,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
        )
        return self.call(asked)

    def why(self, job_id: str) -> Why:
        return self.call(self._app.why(job_id))

    def cancel(self, job_id: str, *, who: str | None = None) -> JobView:
        return self.call(self._app.cancel(job_id, who=who))

    def resume(self, job_id: str, *, who: str | None = None) -> JobView:
        return self.call(self._app.resume(job_id, who=who))

    def retry_step(self, job_id: str, step: int, *, who: str | None = None) -> JobView:
        return self.call(self._app.retry_step(job_id, step, who=who))

    @contextlib.contextmanager
    def running(self) -> Iterator[SyncFairlead]:
        """Run the whole line in the background thread, as `async with app.running()` does."""
        loop = self._started(opens=False)
        context = self._app.running()
        asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
            self._stop_loop()

    def close(self) -> None:
        """Close the app and end the thread; a later call opens it again."""
        loop = self._loop
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._app.close(), loop).result()
            self._stop_loop()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run any of the app's coroutines to its end."""
        try:
            loop = self._started()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The one that the app lives on; the app is open then."""
        return self._started()

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
                atexit.register(self._leave)
            return loop

    def _leave(self) -> None:
        """At exit the thread pools are gone already, so nothing can be closed any more; all there is to do is to stop
        waiting. What was accepted is committed."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_give_up(), self._loop).result(timeout=5)
            self._stop_loop()

    def _stop_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        atexit.unregister(self._leave)


async def _give_up() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=2)
