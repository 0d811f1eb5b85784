"""Everything in one process and one event loop: the line, its worker, its manager, and the gateway before them.

A signal begins the way out: the worker claims no more, calls under way finish (or are handed back when
`drain_timeout` is over), and meanwhile the gateway goes on answering, so that nobody loses sight of a job. Then it
closes. A second signal ends the process at once: nothing accepted is lost, the next start recovers it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from fairlead.app import Fairlead
from fairlead.cli.failure import Exit
from fairlead.gateway.app import create_gateway

log = logging.getLogger("fairlead.up")

# Open event streams do not end by themselves; their readers reconnect.
CLOSE_STREAMS_AFTER_S = 1
LEAVE_AFTER_S = 3


class _Server(uvicorn.Server):
    """Uvicorn would close the gateway at the first signal, before the drain; signals are ours here."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(app: Fairlead, sockets: list[socket.socket], on_up: Callable[[], None]) -> None:
    """Until a signal. `on_up` is called when everything runs, just before the first request is answered."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(app, sockets, on_up))
        # The runner waits for every task to end, and a handler that ignores its cancellation never does.
        last_resort = threading.Timer(LEAVE_AFTER_S, os._exit, (Exit.OK,))
        last_resort.daemon = True
        last_resort.start()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop


async def _serve(app: Fairlead, sockets: list[socket.socket], on_up: Callable[[], None]) -> None:
    stop = _on_signals(app.config.worker.drain_timeout)
    server = _Server(_uvicorn_config(app))
    async with app.running():
        on_up()
        serving = asyncio.create_task(server.serve(sockets=sockets))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            await app.drain()
            log.info("drained; closing")
        server.should_exit = True
        await serving


def _uvicorn_config(app: Fairlead) -> uvicorn.Config:
    return uvicorn.Config(
        create_gateway(app),
        http="auto",
        ws="none",
        # The app runs around the server, not inside it: it must outlive the last request.
        lifespan="off",
        log_config=None,
        # The gateway writes its own line per request.
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_STREAMS_AFTER_S,
    )


def _on_signals(drain_timeout: float) -> asyncio.Event:
    """Set by the first signal. The second one must work even when a handler blocks the loop: no loop callback."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(Exit.INTERRUPTED)
        asked = True
        loop.call_soon_threadsafe(begin, signal.Signals(number).name)

    def begin(name: str) -> None:
        log.info("%s: draining, up to %g s; a second signal exits at once", name, drain_timeout)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop


def leave(code: int) -> None:
    """End the process, even when a function in a thread cannot be stopped: its job has been handed back already."""
    others: list[Any] = [
        thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon
    ]
    if not others:
        sys.exit(code)
    log.warning("%d threads are still busy; leaving them behind", len(others))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
