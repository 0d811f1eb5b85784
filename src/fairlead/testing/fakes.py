"""A fake endpoint: it takes the place of a service, answers as a script says, and records its calls."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from fairlead.executors.port import Call


@dataclass(frozen=True, slots=True)
class Takes:
    """An answer that takes `seconds`: a result, or an exception to raise."""

    seconds: float
    answer: Any = None


@dataclass(frozen=True, slots=True)
class Hangs:
    """An answer that never comes: the call ends at the service's `timeout`, or when its job is cancelled."""


class FakeEndpoint:
    """Answers calls one after the other by its script; the last answer repeats, and without a script each call returns
    its params. An answer is a result, an exception (`fairlead.Retry`, `fairlead.Permanent`, `ConnectionError`), a
    `Takes` or a `Hangs`.

    `calls` are the params of all calls so far, in the order in which they began, `at_once` is the largest number of
    calls that ran at the same time.
    """

    def __init__(self, *script: Any) -> None:
        self._script = deque(script)
        self._last: Any = None if not script else script[-1]
        self._echoes = not script
        self._running = 0
        self.calls: list[dict[str, Any]] = []
        self.at_once = 0

    def then(self, *answers: Any) -> None:
        """Append to the script."""
        if answers:
            self._script.extend(answers)
            self._last, self._echoes = answers[-1], False

    async def __call__(self, call: Call) -> Any:
        self.calls.append(call.params)
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        try:
            return await self._answer(call)
        finally:
            self._running -= 1

    async def _answer(self, call: Call) -> Any:
        if self._echoes:
            return call.params
        answer = self._script.popleft() if self._script else self._last
        if isinstance(answer, Takes):
            await asyncio.sleep(answer.seconds)
            answer = answer.answer
        if isinstance(answer, Hangs):
            await asyncio.Event().wait()
        if isinstance(answer, BaseException):
            raise answer
        return answer
