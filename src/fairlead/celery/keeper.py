"""In every worker: a thread that says that the worker lives and what it runs, and one that takes turns to reconcile."""

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

LEAVE_S = 5.0


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
        self._threads: list[threading.Thread] = []

    def connect(self) -> None:
        worker_ready.connect(self._on_ready, weak=False, dispatch_uid=(id(self), "ready"))
        worker_shutdown.connect(self._on_shutdown, weak=False, dispatch_uid=(id(self), "shutdown"))

    def disconnect(self) -> None:
        worker_ready.disconnect(dispatch_uid=(id(self), "ready"))
        worker_shutdown.disconnect(dispatch_uid=(id(self), "shutdown"))
        self._stop.set()

    def _on_ready(self, sender: Any, **_: Any) -> None:
        # Again after every connection to the broker that was lost.
        if sender.app is not self._app or any(thread.is_alive() for thread in self._threads):
            return
        self._stop.clear()
        loops = [self._beat, self._take_turns] if self._reconcile_every_s else [self._beat]
        self._threads = [
            threading.Thread(target=loop, args=(sender.hostname,), name=f"fairlead-celery{loop.__name__}", daemon=True)
            for loop in loops
        ]
        for thread in self._threads:
            thread.start()

    def _on_shutdown(self, sender: Any, **_: Any) -> None:
        if sender.app is self._app:
            self._stop.set()
            for thread in self._threads[:1]:
                thread.join(LEAVE_S)

    def _beat(self, worker: str) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(Unavailable):  # the log has it
                self._ledger.beat(worker, self._running())
            self._stop.wait(self._beat_every_s)
        with contextlib.suppress(Unavailable):
            self._ledger.leave(worker)

    def _take_turns(self, worker: str) -> None:
        while not self._stop.wait(self._reconcile_every_s):
            try:
                if self._ledger.take_turn(worker, self._reconcile_every_s):
                    self._reconcile()
            except Unavailable:
                pass
            except Exception:
                # A broker that is away, or a message that nobody can read. The next pass looks anew.
                log.exception("load balancing: a reconcile pass failed")

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
