"""Sources of users' priorities: their interface, the function of the application (`@app.priority`), and the circuit
breaker that stops requests to a failing source."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from fairlead.domain.job import PrioritySource
from fairlead.domain.redaction import redacted
from fairlead.executors.function import Threads

PriorityHook = Callable[[str], Any]
MOST_THREADS = 32


class NoAnswer(Exception):
    """The source gave no usable answer.

    `counts`: the failure counts towards the source's circuit breaker. A failure that concerns a single user must not
    count: otherwise a caller could open the breaker for all users by sending a few invented user ids.

    `keep`: the fallback is cached for this user, since asking again soon would not help.
    """

    def __init__(self, message: str, *, counts: bool, keep: bool = False) -> None:
        super().__init__(message)
        self.counts = counts
        self.keep = keep


class PrioritySourceClient(Protocol):
    name: str
    source: PrioritySource

    async def ask(self, user_id: str) -> Any:
        """Ask for the priority of a user. The answer is a priority, a mapping with `priority`, `weight`, `plan`
        or `group`, or None if the source does not set one. Raises NoAnswer."""
        ...

    async def close(self) -> None: ...


class Hook:
    """Calls the application's function (`@app.priority`). An `async def` runs on the event loop; a plain `def` runs in
    a thread, since it may query a database."""

    name = "the hook of @app.priority"
    source = PrioritySource.HOOK

    def __init__(self, function: PriorityHook) -> None:
        self._function = function
        self._on_loop = inspect.iscoroutinefunction(function)
        self._threads = Threads()
        self._slots = asyncio.Semaphore(MOST_THREADS)

    async def ask(self, user_id: str) -> Any:
        try:
            return await (self._function(user_id) if self._on_loop else self._in_thread(user_id))
        except TimeoutError:
            raise
        except Exception as error:
            # Not counted: the failure may concern this user alone, and a hook that fails at once delays no job.
            raise NoAnswer(redacted(f"it raised {type(error).__name__}: {error}"), counts=False) from error

    async def _in_thread(self, user_id: str) -> Any:
        """Call the function in a thread. The number of threads is limited: a function that never returns occupies one
        of them for good."""
        loop = asyncio.get_running_loop()
        await self._slots.acquire()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def run() -> None:
            value, failed = None, None
            try:
                value = self._function(user_id)
            except BaseException as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits for the result
                loop.call_soon_threadsafe(end, value, failed)

        def end(value: Any, failed: BaseException | None) -> None:
            self._slots.release()
            if not done.done():
                done.set_result((value, failed))

        self._threads.run(run)
        value, failed = await done
        if failed is not None:
            raise RuntimeError(f"{type(failed).__name__}: {failed}") from failed
        return await value if inspect.isawaitable(value) else value

    async def close(self) -> None:
        self._threads.close()


class Breaker:
    """A circuit breaker: after repeated failures it rejects calls for a while, then admits a single probe."""

    def __init__(self, *, after: int, rest: float) -> None:
        self._after = after
        self._rest = rest
        self._failures = 0
        self._probe_at = 0.0

    def resting(self, now: float) -> bool:
        return self._failures >= self._after and now < self._probe_at

    def admits(self, now: float) -> bool:
        """Whether a call may be made now. After the pause of an open breaker, a single call is admitted as the probe.
        If the result of the probe is never reported, the next probe is admitted after another pause."""
        if self._failures < self._after:
            return True
        if now < self._probe_at:
            return False
        self._probe_at = now + self._rest
        return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now: float) -> None:
        self._failures += 1
        if self._failures >= self._after:
            self._probe_at = now + self._rest
