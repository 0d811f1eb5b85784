"""The part of the balancer that runs in a worker: it updates the counts when a task starts and ends, sends heartbeats,
and reconciles.

When a task ends, Celery may fire several signals (`task_failure` and `task_postrun` for a failing task), in the child
process or in the worker itself, or none at all. Several signals do no harm, because setting a task to the same state
twice changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal
from weakref import WeakValueDictionary

from celery import signals, states
from celery.worker import state as worker_state

from fairlead.celery.consumption import advice, in_words, unconsumed
from fairlead.celery.task_counts import State, TaskCounts, ticket_of_headers, ticket_of_request
from fairlead.errors import Unavailable

log = logging.getLogger("fairlead.celery")

LEAVE_S = 5.0
BEATS = 5
"""Heartbeats that a worker may miss before it counts as gone."""

Location = tuple[str, str]
"""Queue and ticket."""


class SignalHandlers:
    def __init__(self, app: Any, counts: TaskCounts) -> None:
        self._app = app
        self._counts = counts
        self._names = frozenset(counts.names)
        # Requests by task id, for the worker's main process: the `task_failure` that it fires for a lost child has no
        # request.
        self._received: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._handlers: dict[str, Callable[..., None]] = {
            "task_received": self._on_received,
            "task_prerun": self._on_prerun,
            "task_postrun": self._on_postrun,
            "task_failure": self._on_failure,
            "task_internal_error": self._on_failure,
            "task_retry": self._on_retry,
            "task_revoked": self._on_revoked,
            "task_unknown": self._on_refused,
            "task_rejected": self._on_refused,
        }

    def connect(self) -> None:
        for name, handler in self._handlers.items():
            getattr(signals, name).connect(handler, weak=False, dispatch_uid=(id(self), name))

    def disconnect(self) -> None:
        for name in self._handlers:
            getattr(signals, name).disconnect(dispatch_uid=(id(self), name))

    def _on_received(self, sender: Any, request: Any, **_: Any) -> None:
        if sender.app is self._app:
            self._received[request.id] = request

    def _on_prerun(self, sender: Any, **_: Any) -> None:
        self._move(sender.app, "running", self._location_of(sender.request))

    def _on_postrun(self, sender: Any, state: str | None = None, retval: Any = None, **_: Any) -> None:
        comes_back = state == states.REJECTED and sender.acks_late and getattr(retval, "requeue", False)
        self._move(sender.app, "pending" if comes_back else "", self._location_of(sender.request))

    def _on_failure(self, sender: Any, task_id: str, **_: Any) -> None:
        request = sender.request
        if request.id == task_id:
            self._move(sender.app, "", self._location_of(request))
        elif (received := self._received.get(task_id)) is not None:
            self._move(sender.app, "", self._location_of_headers(received.request_dict))

    def _on_retry(self, sender: Any, request: Any, einfo: Any = None, **_: Any) -> None:
        # Without an error this is not a retry: the worker lost its broker, and the message will be redelivered.
        self._move(sender.app, "pending" if einfo is None else "", self._location_of(request))

    def _on_revoked(self, sender: Any, request: Any, **_: Any) -> None:
        self._move(sender.app, "", self._location_of(request))

    def _on_refused(self, sender: Any, message: Any, **_: Any) -> None:
        headers = {**(message.headers or {}), "delivery_info": message.delivery_info}
        self._move(sender.app, "", self._location_of_headers(headers))

    def _location_of(self, request: Any) -> Location | None:
        if request.is_eager:
            return None
        queue = (request.delivery_info or {}).get("routing_key")
        return (queue, ticket_of_request(request)) if queue in self._names else None

    def _location_of_headers(self, headers: dict[str, Any]) -> Location | None:
        queue = (headers.get("delivery_info") or {}).get("routing_key")
        ticket = ticket_of_headers(headers)
        return (queue, ticket) if queue in self._names and ticket is not None else None

    def _move(self, app: Any, state: State | Literal[""], location: Location | None) -> None:
        if location is None or app is not self._app:
            return
        with contextlib.suppress(Unavailable):  # the outage is logged, and a reconcile pass repairs the count
            self._counts.place(state, [location])


class WorkerThreads:
    """Two threads of a worker. One sends heartbeats that list the tasks which the worker runs; the other reconciles the
    counts whenever it is this worker's turn."""

    def __init__(
        self,
        app: Any,
        counts: TaskCounts,
        reconcile: Callable[[], object],
        worker_ttl_s: float,
        reconcile_every_s: float,
    ) -> None:
        self._app = app
        self._counts = counts
        self._reconcile = reconcile
        self._worker_ttl_s = worker_ttl_s
        self._reconcile_every_s = reconcile_every_s
        self._consumer: Any = None
        self._consumed: list[str] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def connect(self) -> None:
        signals.worker_ready.connect(self._on_ready, weak=False, dispatch_uid=(id(self), "ready"))
        signals.worker_shutdown.connect(self._on_shutdown, weak=False, dispatch_uid=(id(self), "shutdown"))

    def disconnect(self) -> None:
        signals.worker_ready.disconnect(dispatch_uid=(id(self), "ready"))
        signals.worker_shutdown.disconnect(dispatch_uid=(id(self), "shutdown"))
        self._stop.set()

    def _on_ready(self, sender: Any, **_: Any) -> None:
        # Celery fires this signal again whenever a lost connection to the broker is restored.
        if sender.app is not self._app or any(thread.is_alive() for thread in self._threads):
            return
        self._consumer = sender
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
        has_checked = False
        while not self._stop.is_set():
            with contextlib.suppress(Unavailable):  # it is logged
                self._counts.beat(worker, self._running(), self._queues(), self._worker_ttl_s)
                if not has_checked:
                    self._warn_of_unconsumed_queues()
                    has_checked = True
            self._stop.wait(self._worker_ttl_s / BEATS)
        with contextlib.suppress(Unavailable):
            self._counts.leave(worker)

    def _take_turns(self, worker: str) -> None:
        while not self._stop.wait(self._reconcile_every_s):
            try:
                if self._counts.take_turn(worker, self._reconcile_every_s):
                    self._reconcile()
            except Unavailable:
                pass
            except Exception:
                # The broker is not available, or a message cannot be parsed. The next pass tries again.
                log.exception("load balancing: a reconcile pass failed")

    def _queues(self) -> list[str]:
        """Return the balanced queues that this worker consumes. While its connection to the broker is lost, return
        those that it consumed before."""
        if (consumer := self._consumer.task_consumer) is not None:
            self._consumed = [name for name in self._counts.names if consumer.consuming_from(name)]
        return self._consumed

    def _warn_of_unconsumed_queues(self) -> None:
        """When the worker starts, warn of queues that no worker consumes. Reconcile passes repeat this check later."""
        names = unconsumed(self._counts.names, self._counts.live_workers(self._worker_ttl_s))
        if names:
            log.warning(
                "load balancing: this worker consumes %d of %d balanced queues, and so far no worker consumes %s: "
                "tasks that are sent there wait; %s",
                len(self._consumed),
                len(self._counts.names),
                in_words(self._counts.prefix, names),
                advice(names),
            )

    def _running(self) -> Iterator[tuple[str, str]]:
        for request in _copied(worker_state.active_requests):
            queue = (request.delivery_info or {}).get("routing_key")
            ticket = ticket_of_headers(request.request_dict)
            if queue in self._counts.names and ticket is not None:
                yield queue, ticket


def _copied(requests: Any) -> list[Any]:
    """Return a copy of a set that another thread may be changing."""
    while True:
        try:
            return list(requests)
        except RuntimeError:
            continue
