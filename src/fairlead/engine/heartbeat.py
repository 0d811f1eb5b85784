"""Renews leases in a thread of its own, so that a handler that blocks the event loop does not cause leases to expire;
and logs where such a handler blocks."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from fairlead.dispatch.port import Dispatcher
from fairlead.engine.parts import RulesRef
from fairlead.errors import Unavailable
from fairlead.outage import Outage

log = logging.getLogger("fairlead.heartbeat")

BLOCKED_AFTER = 1.0
DEFAULT_TTL = 15.0
STOP_WITHIN = 3.0
PACKAGE = Path(__file__).parents[1]
EXECUTORS = f"{PACKAGE / 'executors'}{os.sep}"
NOT_HANDLERS = (
    f"{PACKAGE}{os.sep}",
    *(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")),
    "<frozen ",
)
"""Where code is that no handler runs, unless an executor calls it."""
LOOP = ("asyncio/base_events.py", "asyncio/events.py", "asyncio/runners.py")
"""The event loop itself: what a callback does is above it in the stack."""


class Holder(Protocol):
    """A holder of leases: a worker, or the slot broker."""

    @property
    def name(self) -> str: ...

    def leases(self) -> Collection[str]: ...

    def lost(self, names: frozenset[str]) -> None: ...


class Heartbeat:
    """Renews all leases of a process, three times within the shortest TTL, and checks that the event loop is not
    blocked. `holders` is iterated at every renewal. `others` are the dispatchers of the other shards: when a service
    moves to another shard, the leases of its running steps are renewed there."""

    def __init__(
        self,
        process: str,
        dispatcher: Dispatcher,
        holders: Iterable[Holder],
        rules: RulesRef,
        others: Sequence[Dispatcher] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._others = others
        self._holders = holders
        self._rules = rules
        self._stop = threading.Event()
        self._wakeup = threading.Event()
        self._hurried = False
        self._loop_answered = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="fairlead-heartbeat", daemon=True)
        self._outage = Outage(log, f"renewing the leases of {process}")
        self.blocked_times = 0
        self._blocked: tuple[float, str, bool] | None = None

    @property
    def interval(self) -> float:
        services = self._rules.current.services.values()
        return min((service.lease_ttl for service in services), default=DEFAULT_TTL) / 3

    @property
    def blocked(self) -> dict[str, Any] | None:
        """How many seconds ago the event loop was last blocked, where in the code, and whether by a handler. None if it
        never was."""
        if self._blocked is None:
            return None
        at, where, handler = self._blocked
        return {"ago": round(time.monotonic() - at, 1), "where": where, "handler": handler}

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Renew all leases at once, because a lease was taken over from another process and may expire soon."""
        self._hurried = True
        self._wakeup.set()

    async def stop(self) -> None:
        """Stop the thread, and wait at most `STOP_WITHIN` seconds for its end: a renewal may hang. The thread is a
        daemon, so it does not keep the process alive."""
        self._stop.set()
        self._wakeup.set()
        await asyncio.to_thread(self._thread.join, STOP_WITHIN)

    def _run(self) -> None:
        tick = min(self.interval, BLOCKED_AFTER)
        renewed_at = asked_at = time.monotonic()
        logged = False
        self._ask_loop()
        while True:
            self._wakeup.wait(tick)
            self._wakeup.clear()
            if self._stop.is_set():
                return
            now = time.monotonic()
            if self._hurried or now - renewed_at >= self.interval:
                self._hurried = False
                for holder in self._holders:
                    self._renew(holder)
                renewed_at = now
            if self._loop_answered.is_set():
                logged, asked_at = False, now
                self._ask_loop()
            elif not logged and now - asked_at >= BLOCKED_AFTER:
                logged = True
                self._log_blocker(now - asked_at)

    def _renew(self, holder: Holder) -> None:
        try:
            renewal = self._dispatcher.renew(holder.name, list(holder.leases()))
            for other in self._others:
                if renewal.rebuilding or not renewal.lost:
                    break
                renewal = other.renew(holder.name, sorted(renewal.lost))
        except Unavailable as error:
            # A missing answer does not mean that leases are lost: the calls go on, and a rebuild restores their leases.
            self._outage.began(error)
            return
        except Exception:
            log.exception("renewing the leases of %s failed; trying again", holder.name)
            return
        self._outage.ended()
        if renewal.lost and not renewal.rebuilding:
            self._call(holder.lost, renewal.lost)

    def _ask_loop(self) -> None:
        self._loop_answered.clear()
        self._call(self._loop_answered.set)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self._stop.set()  # the loop is closed, and the worker has ended with it

    def _log_blocker(self, seconds: float) -> None:
        self.blocked_times += 1
        frame = sys._current_frames().get(self._loop_thread)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "unknown"
        handler = runs_handler(frame)
        self._blocked = (time.monotonic(), where, handler)
        stack = "".join(traceback.format_stack(frame, limit=4)) if frame else "unknown\n"
        log.warning(
            "the event loop has been blocked for %.1f s; leases are still renewed, but nothing else runs. "
            "%s. It is blocked here:\n%s",
            seconds,
            "Make the handler a plain `def` (it then runs in a thread) or await instead"
            if handler
            else "No handler runs: the machine is busy, or the process was suspended",
            stack.rstrip(),
        )


def runs_handler(frame: FrameType | None) -> bool:
    """Whether the event loop is in a handler: in a call of an executor, or in code of the user's that a handler started
    as a task."""
    while frame is not None and not (file := frame.f_code.co_filename).endswith(LOOP):
        if file.startswith(EXECUTORS) or not file.startswith(NOT_HANDLERS):
            return True
        frame = frame.f_back
    return False
