"""The worker's pulse, in a thread of its own: a handler that blocks the event loop costs no lease, and is named."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from fairlead.dispatch.port import Dispatcher
from fairlead.errors import Unavailable
from fairlead.runtime.outage import Outage

log = logging.getLogger(__name__)

BLOCKED_AFTER = 1.0


class Holder(Protocol):
    """A worker, or whoever else has leases, as its pulse knows it."""

    @property
    def name(self) -> str: ...

    def leases(self) -> Collection[str]: ...

    def lost(self, names: frozenset[str]) -> None: ...


class Heartbeat:
    """Renews all leases of a process every third of the shortest TTL, and watches that the event loop still turns.
    `workers` are asked for anew each time."""

    def __init__(
        self, process: str, dispatcher: Dispatcher, workers: Iterable[Holder], *, interval: Callable[[], float]
    ) -> None:
        self._dispatcher = dispatcher
        self._workers = workers
        self._interval = interval
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._hurried = False
        self._answered = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="fairlead-heartbeat", daemon=True)
        self._outage = Outage(log, f"renewing the leases of {process}")
        self.blocked_times = 0
        self._blocked: tuple[float, str] | None = None

    @property
    def blocked(self) -> dict[str, Any] | None:
        """When a handler blocked the event loop last, in seconds ago, and where it was."""
        if self._blocked is None:
            return None
        at, where = self._blocked
        return {"ago": round(time.monotonic() - at, 1), "where": where}

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Renew at once: somebody else has renewed one of the leases until now."""
        self._hurried = True
        self._wake.set()

    async def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        tick = min(self._interval(), BLOCKED_AFTER)
        renewed = asked = time.monotonic()
        said = False
        self._ask()
        while True:
            self._wake.wait(tick)
            self._wake.clear()
            if self._stop.is_set():
                return
            now = time.monotonic()
            if self._hurried or now - renewed >= self._interval():
                self._hurried = False
                for worker in self._workers:
                    self._renew(worker)
                renewed = now
            if self._answered.is_set():
                said, asked = False, now
                self._ask()
            elif not said and now - asked >= BLOCKED_AFTER:
                said = True
                self._name_the_blocker(now - asked)

    def _renew(self, worker: Holder) -> None:
        try:
            renewal = self._dispatcher.renew(worker.name, list(worker.leases()))
        except Unavailable as error:
            # Silence is no loss: the calls go on, and whoever rebuilds the line restores their leases.
            self._outage.began(error)
            return
        except Exception:
            log.exception("renewing the leases of %s failed; trying again", worker.name)
            return
        self._outage.ended()
        if renewal.lost and not renewal.rebuilding:
            self._call(worker.lost, renewal.lost)

    def _ask(self) -> None:
        self._answered.clear()
        self._call(self._answered.set)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self._stop.set()  # the loop is closed, and with it the worker

    def _name_the_blocker(self, seconds: float) -> None:
        self.blocked_times += 1
        frame = sys._current_frames().get(self._loop_thread)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "unknown"
        self._blocked = (time.monotonic(), place)
        where = "".join(traceback.format_stack(frame, limit=4)) if frame else "unknown\n"
        log.warning(
            "the event loop has been blocked for %.1f s; leases are still renewed, but nothing else moves. "
            "Make the handler a plain `def` (it then runs in a thread) or await instead. It is here:\n%s",
            seconds,
            where.rstrip(),
        )
