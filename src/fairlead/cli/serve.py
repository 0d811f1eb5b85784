"""One process and one event loop: whatever roles it has of the line, and the gateway before them if it listens.

A signal begins the way out: the worker claims no more, calls under way finish (or are handed back when
`drain_timeout` is over), and meanwhile the gateway goes on answering, so that nobody loses sight of a job. Then it
closes. A second signal ends the process at once: nothing accepted is lost, the next start or another process
recovers it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fairlead.app import Fairlead
from fairlead.cli.failure import Exit
from fairlead.gateway.app import create_gateway
from fairlead.gateway.metrics import metrics_app
from fairlead.gateway.packets import OnePacket
from fairlead.gateway.transport import websocket_options
from fairlead.runtime.roles import Roles

log = logging.getLogger("fairlead.process")

# What is under way by then is broken off.
CLOSE_STREAMS_AFTER_S = 1
LEAVE_AFTER_S = 3
LOOK_EVERY_S = 1.0
COLLECT_AFTER = (50_000, 20, 100)


class _Server(uvicorn.Server):
    """Uvicorn would close the gateway at the first signal, before the drain; signals are ours here."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    app: Fairlead,
    roles: Roles,
    sockets: list[socket.socket],
    metrics: list[socket.socket],
    on_up: Callable[[], Awaitable[None]],
) -> Exit:
    """Until a signal. `on_up` is awaited when everything runs, just before the first request is answered."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_serve(app, roles, sockets, metrics, on_up))
        # The runner waits for every task to end, and a handler that ignores its cancellation never does.
        last_resort = threading.Timer(LEAVE_AFTER_S, os._exit, (code,))
        last_resort.daemon = True
        last_resort.start()
    return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop


def _collect_less_often() -> None:
    """What is loaded by now stays. A busy process makes thousands of objects per commit that live for milliseconds and
    are in no cycles: with Python's defaults a tenth of its time would go into looking for some."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def _serve(
    app: Fairlead,
    roles: Roles,
    sockets: list[socket.socket],
    metrics: list[socket.socket],
    on_up: Callable[[], Awaitable[None]],
) -> Exit:
    stop = _on_signals(app.config.worker.drain_timeout if roles.worker else None)
    async with app.running(roles), _metrics_told(app, metrics):
        _collect_less_often()
        await on_up()
        if not sockets:
            await _work(app, stop)
        else:
            await _answer(app, sockets, stop)
        return Exit.OK if app.broken is None else Exit.REFUSED


@asynccontextmanager
async def _metrics_told(app: Fairlead, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """To the end, drain included: that is when somebody looks."""
    if not sockets:
        yield
        return
    server = _Server(_uvicorn_config(metrics_app(app)))
    serving = asyncio.create_task(server.serve(sockets=sockets))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def _answer(app: Fairlead, sockets: list[socket.socket], stop: asyncio.Event) -> None:
    server = _Server(_uvicorn_config(create_gateway(app)))
    serving = asyncio.create_task(server.serve(sockets=sockets))
    stopping = asyncio.create_task(_until_told_or_broken(app, stop))
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done():
        await _drain(app)
    # Whoever watches is told to go on elsewhere: these do not end by themselves.
    app.hub.dismiss()
    server.should_exit = True
    await serving


async def _work(app: Fairlead, stop: asyncio.Event) -> None:
    await _until_told_or_broken(app, stop)
    await _drain(app)


async def _until_told_or_broken(app: Fairlead, stop: asyncio.Event) -> None:
    """One that broke down ends, so that it is started again."""
    while app.broken is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await stop.wait()
                break
    if app.broken is not None:
        log.critical("%s broke down; leaving", type(app.broken).__name__)


async def _drain(app: Fairlead) -> None:
    await app.drain()
    log.info("drained; closing")


def _uvicorn_config(application: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=OnePacket,
        # The app runs around the server, not inside it: it must outlive the last request.
        lifespan="off",
        log_config=None,
        # The gateway writes its own line per request.
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_STREAMS_AFTER_S,
        **websocket_options(),
    )


def _on_signals(drain_timeout: float | None) -> asyncio.Event:
    """Set by the first signal; with None there is nothing to drain. The second one must work even when a handler blocks
    the loop: no loop callback."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(Exit.INTERRUPTED)
        asked = True
        loop.call_soon_threadsafe(begin, signal.Signals(number).name)

    def begin(name: str) -> None:
        what = "closing" if drain_timeout is None else f"draining, up to {drain_timeout:g} s"
        log.info("%s: %s; a second signal exits at once", name, what)
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
