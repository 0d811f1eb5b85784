"""How a task gets its queue: Celery asks our router, which reserves; what is not published is given back.

Celery tells a router neither the task's id nor whether the publish succeeded, so `app.send_task` is wrapped: it draws
the id first, and what was reserved within it is undone when it raises.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from celery import uuid
from celery.signals import after_task_publish, before_task_publish

from fairlead.celery.ledger import Ledger
from fairlead.celery.strategies import Candidates
from fairlead.celery.tickets import ticket_of
from fairlead.celery.users import Users
from fairlead.errors import Unavailable

BATCH = 1000
"""Tasks of a group that are reserved in one call."""
_DESTINATION = ("queue", "exchange", "routing_key")
_OURS = {"queue": "?"}
"""What the router answers when it is only asked whether it would choose."""


@dataclass(slots=True)
class Sending:
    """One call of `send_task`. `queue` is where it is counted."""

    publishing: Publishing
    ticket: str
    first: bool
    queue: str | None = None
    published: bool = False


_sending: ContextVar[Sending | None] = ContextVar("fairlead_celery_sending", default=None)
_asking: ContextVar[bool] = ContextVar("fairlead_celery_asking", default=False)


class Publishing:
    def __init__(self, app: Any, ledger: Ledger, candidates: Candidates, users: Users) -> None:
        self._app = app
        self._ledger = ledger
        self._names = frozenset(ledger.names)
        self._candidates = candidates
        self._users = users
        self._turn = itertools.count()
        # Tickets that have a queue before Celery asks for one: tasks of groups, and what was enqueued by hand.
        self._ahead: dict[str, str] = {}

    def connect(self) -> None:
        self._send = self._app.send_task
        self._signature = inspect.signature(self._send)
        self._app.send_task = self.send_task
        before_task_publish.connect(self._before_publish, weak=False, dispatch_uid=(id(self), "before"))
        after_task_publish.connect(self._after_publish, weak=False, dispatch_uid=(id(self), "after"))

    def disconnect(self) -> None:
        if self._app.__dict__.get("send_task") == self.send_task:
            del self._app.send_task
        before_task_publish.disconnect(dispatch_uid=(id(self), "before"))
        after_task_publish.disconnect(dispatch_uid=(id(self), "after"))

    # -- one task --------------------------------------------------------------------------------------------------

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """As Celery's own."""
        if more:
            bound = self._signature.bind(name, args, kwargs, *more, **options).arguments
            options = {**bound.pop("options", {}), **bound}
            name, args, kwargs = options.pop("name"), options.pop("args"), options.pop("kwargs")
        task_id = options["task_id"] = options.get("task_id") or uuid()
        retries, nesting = options.get("retries"), options.get("replaced_task_nesting")
        sending = Sending(self, ticket_of(task_id, retries, nesting), not (retries or nesting))
        token = _sending.set(sending)
        try:
            return self._send(name, args, kwargs, **options)
        except BaseException:
            if sending.queue is not None and not sending.published:
                self._give_back([(sending.queue, sending.ticket)])
            raise
        finally:
            _sending.reset(token)

    def route(self, name: str, args: Any, kwargs: Any, options: Mapping[str, Any], **_: Any) -> dict[str, Any] | None:
        """The router, last in `task_routes`."""
        if any(options.get(key) for key in _DESTINATION):
            return None
        if _asking.get():
            return _OURS
        sending = _sending.get()
        if sending is None or sending.publishing is not self:
            return None  # nobody sends: there is nothing to count
        queue = self._ahead.pop(sending.ticket, None) or self.reserve(sending.ticket, name, args, kwargs)
        if queue is None:
            return {"queue": self.next_in_turn(name, args, kwargs)}
        sending.queue = queue
        return {"queue": queue}

    def reserve(self, ticket: str, name: str, args: Any, kwargs: Any) -> str | None:
        """The queue where the ticket is counted from now on; None while Redis is away."""
        try:
            return self._ledger.reserve([(ticket, self.candidates(name, args, kwargs))])[0]
        except Unavailable:
            return None

    def next_in_turn(self, name: str, args: Any, kwargs: Any) -> str:
        """A queue without a look at the loads."""
        among = self.candidates(name, args, kwargs) or range(len(self._ledger.names))
        return self._ledger.names[among[next(self._turn) % len(among)]]

    def candidates(self, name: str, args: Any, kwargs: Any) -> tuple[int, ...]:
        return self._candidates(self._users.of(name, args, kwargs))

    def enqueue(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Balanced whatever other routes say."""
        if self._app.conf.task_always_eager:
            return task.apply_async(args=args, kwargs=kwargs)
        ticket = uuid()
        queue = self.reserve(ticket, task.name, args, kwargs)
        if queue is None:
            queue = self.next_in_turn(task.name, args, kwargs)
        else:
            self._ahead[ticket] = queue
        try:
            return task.apply_async(args=args, kwargs=kwargs, task_id=ticket, queue=queue)
        finally:
            self._give_back_unused([ticket])

    def _before_publish(self, routing_key: str | None = None, **_: Any) -> None:
        """Counts what goes to one of our queues by its caller's choice, or by another route: also every retry."""
        sending = _sending.get()
        if sending is None or sending.publishing is not self or sending.queue is not None:
            return
        ahead = self._ahead.pop(sending.ticket, None)
        if ahead is not None and ahead != routing_key:
            self._give_back([(ahead, sending.ticket)])
        if routing_key not in self._names:
            return
        try:
            if ahead != routing_key:
                self._count(routing_key, sending)
            sending.queue = routing_key
        except Unavailable:
            pass  # it is counted when it starts

    def _count(self, queue: str, sending: Sending) -> None:
        if sending.first:
            self._ledger.expect(queue, sending.ticket)
        else:
            self._ledger.place("pending", [(queue, sending.ticket)])

    def _after_publish(self, **_: Any) -> None:
        sending = _sending.get()
        if sending is not None and sending.publishing is self:
            sending.published = True

    # -- groups ----------------------------------------------------------------------------------------------------

    def spread(self, tasks: Iterable[Any], options: Mapping[str, Any], apply: Callable[..., Any]) -> Iterator[Any]:
        """Applies the tasks of a group; each has its queue from one call for all of them."""
        ahead: list[str] = []

        def reserved() -> Iterator[Any]:
            rest = iter(tasks)
            while batch := list(itertools.islice(rest, BATCH)):
                ahead.extend(self._reserve_ahead([signature for signature, *_ in batch], options))
                yield from batch

        try:
            yield from apply(reserved())
        finally:
            self._give_back_unused(ahead)

    def _reserve_ahead(self, signatures: Sequence[Any], options: Mapping[str, Any]) -> list[str]:
        """The tickets of those that are ours to place. A chain or a group among them is reserved when it is sent."""
        if any(options.get(key) for key in _DESTINATION):
            return []
        calls: dict[str, tuple[int, ...]] = {}
        for signature in signatures:
            if signature.get("subtask_type") or not (ticket := signature.options.get("task_id")):
                continue
            whole = signature.clone(options.get("args"), options.get("kwargs"))
            if self._would_choose(whole):
                calls[ticket] = self.candidates(whole.task, whole.args, whole.kwargs)
        try:
            queues = self._ledger.reserve(list(calls.items())) if calls else []
        except Unavailable:
            return []
        self._ahead |= dict(zip(calls, queues, strict=True))
        return list(calls)

    def _would_choose(self, signature: Any) -> bool:
        task = self._app.tasks.get(signature.task)
        if any(signature.options.get(key) or getattr(task, key, None) for key in _DESTINATION):
            return False
        if len(self._app.amqp.routes) == 1:
            return True
        token = _asking.set(True)
        try:
            found = self._app.amqp.router.lookup_route(signature.task, signature.args, signature.kwargs, {}, task)
            return found is _OURS
        finally:
            _asking.reset(token)

    # -- undoing ---------------------------------------------------------------------------------------------------

    def _give_back_unused(self, tickets: Iterable[str]) -> None:
        self._give_back([(queue, ticket) for ticket in tickets if (queue := self._ahead.pop(ticket, None))])

    def _give_back(self, tasks: Sequence[tuple[str, str]]) -> None:
        if not tasks:
            return
        with contextlib.suppress(Unavailable):  # a reconcile pass finds that there is no such message
            self._ledger.place("", tasks)
