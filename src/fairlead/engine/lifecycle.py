"""Limits how long a process takes to start and to stop. The start waits for a database that is restarting, up to a
limit. The shutdown does not wait for a database that accepts connections and never answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from fairlead.outage import Outage
from fairlead.store.port import Busy

T = TypeVar("T")

START_PATIENCE = 15.0
"""Seconds that a starting process waits for the database: longer than an ordinary restart takes."""
_DELAYS = (0.1, 0.2, 0.5, 1.0)
log = logging.getLogger("fairlead.shutdown")

STEP_WITHIN = 3.0
"""Seconds for one step of the shutdown."""


async def patiently(log: logging.Logger, what: str, act: Callable[[], Awaitable[T]]) -> T:
    """Call `act`, and call it again while the database is restarting or ends the session, for at most START_PATIENCE
    seconds. `act` must be safe to repeat."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_PATIENCE
    outage = Outage(log, what)
    for delay in itertools.chain(_DELAYS, itertools.repeat(_DELAYS[-1])):
        try:
            result = await act()
        except Busy as error:
            if loop.time() >= deadline:
                raise
            outage.began(error)
            await asyncio.sleep(delay)
        else:
            outage.ended()
            return result
    raise AssertionError("there is always another delay")


async def stopped(tasks: Iterable[asyncio.Task[Any]], within: float = STEP_WITHIN) -> None:
    """Wait until these cancelled tasks have ended, up to a limit. A database driver may block until its server confirms
    a cancellation: such tasks are left running, and end when the store closes its connections."""
    waiting = set(tasks)
    if not waiting:
        return
    _, pending = await asyncio.wait(waiting, timeout=within)
    if pending:
        names = ", ".join(sorted(task.get_name() for task in pending))
        log.warning("still running %g s after their cancellation: %s", within, names)


async def bounded(what: str, step: Coroutine[Any, Any, None], within: float = STEP_WITHIN) -> None:
    """Await a step of the shutdown, and give it up after `within` seconds."""
    task = asyncio.get_running_loop().create_task(step, name="fairlead-shutdown")
    try:
        _, pending = await asyncio.wait([task], timeout=within)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if pending:
        log.warning("%s did not finish within %g s and was given up", what, within)
        task.cancel()
        task.add_done_callback(_retrieve)
    else:
        task.result()


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
