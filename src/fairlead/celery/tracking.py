"""What workers tell: Celery's signals, each turned into where the task is now.

Several of them may fire for one end (a failing task fires `task_failure` and `task_postrun`), in the child or in the
worker itself, or none at all; saying twice where a task is changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakValueDictionary

from celery import signals, states

from fairlead.celery.ledger import Ledger, State
from fairlead.celery.tickets import ticket_of_headers, ticket_of_request
from fairlead.errors import Unavailable

Place = tuple[str, str]
"""Queue and ticket."""


class Tracking:
    def __init__(self, app: Any, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._names = frozenset(ledger.names)
        # In the worker's own process: its `task_failure` of a lost child names no request.
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
        self._move(sender.app, "running", self._place_of(sender.request))

    def _on_postrun(self, sender: Any, state: str | None = None, retval: Any = None, **_: Any) -> None:
        comes_back = state == states.REJECTED and sender.acks_late and getattr(retval, "requeue", False)
        self._move(sender.app, "pending" if comes_back else "", self._place_of(sender.request))

    def _on_failure(self, sender: Any, task_id: str, **_: Any) -> None:
        request = sender.request
        if request.id == task_id:
            self._move(sender.app, "", self._place_of(request))
        elif (received := self._received.get(task_id)) is not None:
            self._move(sender.app, "", self._place_of_headers(received.request_dict))

    def _on_retry(self, sender: Any, request: Any, einfo: Any = None, **_: Any) -> None:
        # Without an error it is no retry: the worker lost its broker and stopped what will be delivered once more.
        self._move(sender.app, "pending" if einfo is None else "", self._place_of(request))

    def _on_revoked(self, sender: Any, request: Any, **_: Any) -> None:
        self._move(sender.app, "", self._place_of(request))

    def _on_refused(self, sender: Any, message: Any, **_: Any) -> None:
        headers = {**(message.headers or {}), "delivery_info": message.delivery_info}
        self._move(sender.app, "", self._place_of_headers(headers))

    def _place_of(self, request: Any) -> Place | None:
        if request.is_eager:
            return None
        queue = (request.delivery_info or {}).get("routing_key")
        return (queue, ticket_of_request(request)) if queue in self._names else None

    def _place_of_headers(self, headers: dict[str, Any]) -> Place | None:
        queue = (headers.get("delivery_info") or {}).get("routing_key")
        ticket = ticket_of_headers(headers)
        return (queue, ticket) if queue in self._names and ticket is not None else None

    def _move(self, app: Any, state: State | Literal[""], place: Place | None) -> None:
        if place is None or app is not self._app:
            return
        with contextlib.suppress(Unavailable):  # the log has it; a reconcile pass puts it right
            self._ledger.place(state, [place])
