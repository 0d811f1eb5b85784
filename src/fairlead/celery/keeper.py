"""In every worker: a thread that says that the worker lives and what it runs, and takes its turn to reconcile."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from celery.signals import worker_ready, worker_shutdown
from celery.worker import state

from fairlead.celery.ledger import Ledger
from fairlead.celery.tickets import ticket_of_headers
from fairlead.errors import Unavailable

log = logging.getLogger("fairlead.celery")


class Keeper:
    def __init__(
        self, app: Any, ledger: Ledger, reconcile: Callable[[], object], beat_every_s: float, reconcile_every_s: float
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._reconcile = reconcile
        self._beat_every_s = beat_every_s
        self._reconcile_every_s = reconcile_every_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        worker_ready.connect(self._on_ready, weak=False, dispatch_uid=(id(self), "ready"))
        worker_shutdown.connect(self._on_shutdown, weak=False, dispatch_uid=(id(self), "shutdown"))

    def disconnect(self) -> None:
        worker_ready.disconnect(dispatch_uid=(id(self), "ready"))
        worker_shutdown.disconnect(dispatch_uid=(id(self), "shutdown"))
        self._stop.set()

    def _on_ready(self, sender: Any, **_: Any) -> None:
        if sender.app is not self._app or (self._thread is not None and self._thread.is_alive()):
            return
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._run, args=(sender.hostname,), name="fairlead-celery-keeper", daemon=True
        )
        self._thread.start()

    def _on_shutdown(self, sender: Any, **_: Any) -> None:
        if sender.app is self._app:
            self._stop.set()
            if self._thread is not None:
                self._thread.join(self._beat_every_s)

    def _run(self, worker: str) -> None:
        while not self._stop.is_set():
            try:
                self._ledger.beat(worker, self._running())
                if self._reconcile_every_s and self._ledger.take_turn(worker, self._reconcile_every_s):
                    self._reconcile()
            except Unavailable:
                pass  # the log has it
            except Exception:
                # A broker that is away, or a message that nobody can read. The next pass looks anew.
                log.exception("load balancing: a reconcile pass failed")
            self._stop.wait(self._beat_every_s)
        with contextlib.suppress(Unavailable):
            self._ledger.leave(worker)

    def _running(self) -> Iterator[tuple[str, str]]:
        for request in _copied(state.active_requests):
            queue = (request.delivery_info or {}).get("routing_key")
            ticket = ticket_of_headers(request.request_dict)
            if queue in self._ledger.names and ticket is not None:
                yield queue, ticket


def _copied(requests: Any) -> list[Any]:
    """Of a set that another thread changes."""
    while True:
        try:
            return list(requests)
        except RuntimeError:
            continue
