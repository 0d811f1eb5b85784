"""Threads for handlers that are plain functions: as many as there are calls under way, reused when idle.

Not `ThreadPoolExecutor`: its size is fixed while a limit may be raised, and its threads keep the process alive at exit,
where a handler that never ends would keep it for ever. These are daemons; what they were doing is recovered.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Task = Callable[[], None]
Ended = tuple[Any, BaseException | None]


class Threads:
    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Task | None]] = []
        self._closed = False

    def run(self, task: Task) -> None:
        """`task` must not raise."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._work, args=(inbox,), name="fairlead-call", daemon=True).start()
        inbox.put(task)

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Ended]:
        """For the running loop. Value and error come as one: StopIteration, for one, cannot be a future's exception."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Ended] = loop.create_future()

        def run() -> None:
            value, failed = None, None
            try:
                value = work()
            except BaseException as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, done, (value, failed))

        self.run(run)
        return done

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, inbox: SimpleQueue[Task | None]) -> None:
        while (task := inbox.get()) is not None:
            task()
            if self._closed:
                return
            self._idle.append(inbox)


def _settle(done: asyncio.Future[Ended], ended: Ended) -> None:
    if not done.done():  # whoever waited may have cancelled it
        done.set_result(ended)
