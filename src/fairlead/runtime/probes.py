"""Questions to engines that may hang: whoever asks is answered in time, and the question goes on by itself.

One that hangs is not broken off, since a driver may wait for its server to hear of that too, and it is not asked again
meanwhile: whoever looks every few seconds would use up all connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

log = logging.getLogger(__name__)

Question = Callable[[], Coroutine[Any, Any, str]]


class Probes:
    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Task[Any]] = {}

    async def ask_all(self, asked: Mapping[str, tuple[Question, float]]) -> dict[str, str]:
        """Side by side, each with its seconds: what each says, or that nothing comes."""
        said = await asyncio.gather(*(self._ask(name, *about) for name, about in asked.items()))
        return dict(zip(asked, said, strict=True))

    async def _ask(self, name: str, question: Question, within: float) -> str:
        task = self._under_way.get(name) or self._start(name, question())
        await asyncio.wait({task}, timeout=within)
        return str(task.result()) if task.done() else f"does not answer within {within:g} s"

    async def do(self, what: Coroutine[Any, Any, None], within: float) -> None:
        """Returns when it is done, or when it takes too long; then it goes on, and the log has what becomes of it."""
        task = self._start(f"change-{id(what)}", what)
        await asyncio.wait({task}, timeout=within)
        if task.done():
            task.result()
        else:
            task.add_done_callback(_tell)

    def close(self) -> None:
        for task in list(self._under_way.values()):
            task.cancel()

    def _start(self, name: str, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._under_way[name] = asyncio.create_task(what, name=f"fairlead-probe-{name}")
        task.add_done_callback(lambda _: self._under_way.pop(name, None))
        return task


def _tell(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("what took too long has failed", exc_info=error)
