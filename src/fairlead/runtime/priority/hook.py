"""`@app.priority`: a function of the application says who goes first."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from fairlead.domain.job import PrioritySource
from fairlead.executors.threads import Threads
from fairlead.runtime.priority.port import NoAnswer

PriorityHook = Callable[[str], Any]
MOST_THREADS = 32


class Hook:
    """An `async def` runs on the event loop, a plain `def` in a thread: it may look into a database."""

    name = "the hook of @app.priority"
    source = PrioritySource.HOOK

    def __init__(self, function: PriorityHook) -> None:
        self._function = function
        self._on_loop = inspect.iscoroutinefunction(function)
        self._threads = Threads()
        self._room = asyncio.Semaphore(MOST_THREADS)

    async def ask(self, user_id: str) -> Any:
        try:
            return await (self._function(user_id) if self._on_loop else self._in_thread(user_id))
        except TimeoutError:
            raise
        except Exception as error:
            # Not counted: it may be about this user alone, and a hook that fails at once keeps nobody waiting.
            raise NoAnswer(f"it raised {type(error).__name__}: {error}", counts=False) from error

    async def _in_thread(self, user_id: str) -> Any:
        """A function that never ends keeps its thread, and its place among them."""
        loop = asyncio.get_running_loop()
        await self._room.acquire()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def run() -> None:
            value, failed = None, None
            try:
                value = self._function(user_id)
            except BaseException as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(end, value, failed)

        def end(value: Any, failed: BaseException | None) -> None:
            self._room.release()
            if not done.done():
                done.set_result((value, failed))

        self._threads.run(run)
        value, failed = await done
        if failed is not None:
            raise RuntimeError(f"{type(failed).__name__}: {failed}") from failed
        return await value if inspect.isawaitable(value) else value

    async def close(self) -> None:
        self._threads.close()
