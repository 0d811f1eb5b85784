"""Runs a process until a signal arrives. All roles of the process, including the gateway, share one event loop.

The first signal starts the drain: the worker claims no more jobs, and running calls finish or, after `drain_timeout`,
are released. The gateway answers requests meanwhile. Then the process exits. A second signal makes the process exit at
once. No accepted job is lost even then: another process, or this one after a restart, recovers its jobs.
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
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fairlead.app.fairlead import Fairlead
from fairlead.cli.failure import Exit
from fairlead.cli.tls import Certificate, reload_when_changed, server_context
from fairlead.domain.config import ServerConfig
from fairlead.engine.roles import Roles
from fairlead.gateway.app import create_gateway
from fairlead.gateway.metrics import metrics_app
from fairlead.gateway.otlp_metrics import exporting_metrics
from fairlead.gateway.serving import uvicorn_options
from fairlead.store.sqlite.gil import shorten_switch_interval

log = logging.getLogger("fairlead.process")

# Requests and streams that are open for longer after the drain are cut off.
CLOSE_STREAMS_AFTER_S = 1
LEAVE_AFTER_S = 3
LOOK_EVERY_S = 1.0
COLLECT_AFTER = (50_000, 20, 100)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to this module. Uvicorn itself would close the gateway at the first signal,
    before the drain."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What a process listens on: the gateway, with a certificate for HTTPS, and metrics. Each may be empty."""

    gateway: list[socket.socket]
    metrics: list[socket.socket]
    certificate: Certificate | None = None


def run(app: Fairlead, roles: Roles, endpoints: Endpoints, on_up: Callable[[], Awaitable[None]]) -> Exit:
    """Run the roles of a process until a signal arrives. `on_up` is awaited when everything runs, just before the first
    request is served."""
    shorten_switch_interval()  # nothing else runs in this process
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(_serve(app, roles, endpoints, on_up))
        # The runner waits for every task, and the task of a handler that ignores its cancellation never ends.
        last_resort = threading.Timer(LEAVE_AFTER_S, os._exit, (code,))
        last_resort.daemon = True
        last_resort.start()
    return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not available on Windows
        return None
    return uvloop.new_event_loop


def _collect_less_often() -> None:
    """Freeze the objects that exist now, and make garbage collection less frequent. A busy process creates thousands of
    short-lived objects per commit, and none of them is part of a cycle. With the default thresholds the process would
    spend a tenth of its time in the collector."""
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def _serve(app: Fairlead, roles: Roles, endpoints: Endpoints, on_up: Callable[[], Awaitable[None]]) -> Exit:
    stop = _on_signals(app.config.worker.drain_timeout if roles.worker else None)
    # Before the heartbeat starts, which reports a blocked event loop: on a busy machine this takes over a second.
    gc.collect()
    async with app.running(roles), _serving_metrics(app, endpoints.metrics), exporting_metrics(app):
        _collect_less_often()
        await on_up()
        if not endpoints.gateway:
            await _work(app, stop)
        else:
            await _answer(app, endpoints, stop)
        return Exit.OK if app.broken is None else Exit.REFUSED


@asynccontextmanager
async def _serving_metrics(app: Fairlead, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """Context manager that serves metrics until the block ends. The drain is part of the block."""
    if not sockets:
        yield
        return
    server = _Server(_uvicorn_config(metrics_app(app), app.config.server))
    serving = asyncio.create_task(server.serve(sockets=sockets))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


async def _answer(app: Fairlead, endpoints: Endpoints, stop: asyncio.Event) -> None:
    config = _uvicorn_config(create_gateway(app), app.config.server, endpoints.certificate)
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=endpoints.gateway))
    reloading = None
    if endpoints.certificate is not None and config.ssl is not None:
        reloading = asyncio.create_task(reload_when_changed(endpoints.certificate, config.ssl))
    stopping = asyncio.create_task(_until_signal_or_failure(app, stop))
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not serving.done():
        await _drain(app)
    # Close streams, which do not end by themselves; clients reconnect elsewhere.
    app.hub.dismiss()
    server.should_exit = True
    if reloading is not None:
        reloading.cancel()
    await serving


async def _work(app: Fairlead, stop: asyncio.Event) -> None:
    await _until_signal_or_failure(app, stop)
    await _drain(app)


async def _until_signal_or_failure(app: Fairlead, stop: asyncio.Event) -> None:
    """Wait for a signal, or until the app has failed. After a failure the process exits, so that its supervisor
    restarts it."""
    while app.broken is None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await stop.wait()
                break
    if app.broken is not None:
        log.critical("%s failed; exiting", type(app.broken).__name__)


async def _drain(app: Fairlead) -> None:
    await app.drain()
    log.info("drained; closing")


def _uvicorn_config(
    application: ASGIApp, server: ServerConfig, certificate: Certificate | None = None
) -> uvicorn.Config:
    config = uvicorn.Config(
        application,
        interface="asgi3",  # uvicorn takes a layer that is a plain function for ASGI 2
        # The server must not start and stop the app, which lives longer than the server.
        lifespan="off",
        log_config=None,
        # The gateway logs each request itself.
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_STREAMS_AFTER_S,
        **uvicorn_options(server),
    )
    config.load()
    if certificate is not None:
        config.ssl = server_context()
        certificate.load_into(config.ssl)
    return config


def _on_signals(drain_timeout: float | None) -> asyncio.Event:
    """Install signal handlers and return an event that the first signal sets. A second signal exits at once.
    `drain_timeout` is for the log message; None means that this process has nothing to drain.

    The handlers are not callbacks of the event loop, because a second signal must work even if the loop is blocked.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signalled = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            os._exit(Exit.INTERRUPTED)
        signalled = True
        loop.call_soon_threadsafe(begin, signal.Signals(number).name)

    def begin(name: str) -> None:
        what = "closing" if drain_timeout is None else f"draining, up to {drain_timeout:g} s"
        log.info("%s: %s; a second signal exits at once", name, what)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop


def leave(code: int) -> None:
    """Exit the process, even if a function in another thread is still running and cannot be stopped. The job of such a
    function has already been released."""
    others: list[Any] = [
        thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon
    ]
    if not others:
        sys.exit(code)
    log.warning("%d threads are still running; exiting without them", len(others))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
