"""How a task gets its queue: Celery asks our router, which reserves; what is not published is given back.

Celery tells a router neither the task's id nor whether the publish succeeded, so `app.send_task` is wrapped: it draws
the id first, and what was reserved within it is undone when it raises. Where the broker is the same Redis, the queue is
chosen by the script that sends the message (`folding.py`). Elsewhere Redis chooses while Celery makes the message: the
router only asks, and the answer is read where the message is sent, in `amqp.send_task_message`.
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

from fairlead.celery.folding import broker_folds, goes_elsewhere, is_heard, listen, parted
from fairlead.celery.ledger import Ledger
from fairlead.celery.link import Question
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
    """One call of `send_task`. `queue` is where it is counted. `question`: Redis was asked for one among
    `candidates`. `folds`: the message is put into its queue by us."""

    publishing: Publishing
    task_id: str
    ticket: str
    first: bool
    queue: str | None = None
    published: bool = False
    question: Question | None = None
    candidates: tuple[int, ...] = ()
    foldable: bool = False
    folds: bool = False

    def push(self, channel: Any, message: dict[str, Any], put: Callable[[str], None]) -> None:
        self.publishing.push(self, channel, message, put)


_sending: ContextVar[Sending | None] = ContextVar("fairlead_celery_sending", default=None)


def _folding() -> Sending | None:
    sending = _sending.get()
    return sending if sending is not None and sending.folds else None


_asking: ContextVar[bool] = ContextVar("fairlead_celery_asking", default=False)


class Publishing:
    def __init__(self, app: Any, ledger: Ledger, candidates: Candidates, users: Users, *, own_redis: bool) -> None:
        self._app = app
        self._ledger = ledger
        self._names = frozenset(ledger.names)
        self._candidates = candidates
        self._users = users
        self._turn = itertools.count()
        # Tickets that have a queue before Celery asks for one: tasks of groups, and what was enqueued by hand.
        self._ahead: dict[str, str] = {}
        self._send_message: Any = None
        self._broker_folds: bool | None = None if own_redis else False

    def connect(self) -> None:
        self._send = self._app.send_task
        self._signature = inspect.signature(self._send)
        self._app.send_task = self.send_task
        self._app.amqp.__dict__["send_task_message"] = self.send_message

    def disconnect(self) -> None:
        if self._app.__dict__.get("send_task") == self.send_task:
            del self._app.send_task
        if self._app.amqp.__dict__.get("send_task_message") == self.send_message:
            del self._app.amqp.send_task_message

    # -- one task --------------------------------------------------------------------------------------------------

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """As Celery's own."""
        if more:
            bound = self._signature.bind(name, args, kwargs, *more, **options).arguments
            options = {**bound.pop("options", {}), **bound}
            name, args, kwargs = options.pop("name"), options.pop("args"), options.pop("kwargs")
        task_id = options["task_id"] = options.get("task_id") or uuid()
        retries, nesting = options.get("retries"), options.get("replaced_task_nesting")
        sending = Sending(self, task_id, ticket_of(task_id, retries, nesting), not (retries or nesting))
        sending.foldable = self._broker_folds is not False and not goes_elsewhere(options)
        token = _sending.set(sending)
        try:
            return self._send(name, args, kwargs, **options)
        except BaseException:
            self._settle(sending)
            if sending.queue is not None and not sending.published:
                self._give_back([(sending.queue, sending.ticket)])
            raise
        finally:
            _sending.reset(token)

    def send_message(self, producer: Any, name: str, message: Any, **options: Any) -> Any:
        """As Celery's own, which is made when it is needed: it reads the configuration."""
        if self._send_message is None:
            self._send_message = self._app.amqp._create_task_sender()
        sending = _sending.get()
        if sending is None or sending.publishing is not self:
            return self._send_message(producer, name, message, **options)
        if sending.question is not None:
            options["queue"] = self._settle(sending)
        elif sending.queue is None and not sending.folds:
            self._count_chosen(sending, _destination(options))
        sent = self._send_message(producer, name, message, **options)
        sending.published = True
        return sent

    def _folds(self) -> bool:
        """Asked when a message is sent: by then the app is configured."""
        if self._broker_folds is None:
            self._broker_folds = broker_folds(self._app)
            if self._broker_folds:
                listen(_folding)
        return self._broker_folds

    def push(self, sending: Sending, channel: Any, message: dict[str, Any], put: Callable[[str], None]) -> None:
        """Where Redis is away the transport tries for itself; whether that succeeds is the broker's matter."""
        parts = parted(channel, message)
        try:
            if parts is None:
                chosen = sending.queue or self._ledger.reserve([(sending.ticket, sending.candidates)])[0]
                sending.queue = chosen
                put(chosen)
            elif sending.queue is None:
                sending.queue = self._ledger.push(sending.ticket, sending.candidates, *parts)
            else:
                self._ledger.deliver(*(sending.queue.join(part) for part in parts))
        except Unavailable:
            put(sending.queue or self._next_among(sending.candidates))
        sending.published = True

    def _settle(self, sending: Sending) -> str | None:
        """The queue that Redis chose; or, while it is away, the next in turn, where nothing is counted."""
        question, sending.question = sending.question, None
        if question is None:
            return None
        try:
            sending.queue = self._ledger.told(question)
            return sending.queue
        except Unavailable:
            sending.folds = False
            return self._next_among(sending.candidates)

    def route(self, name: str, args: Any, kwargs: Any, options: Mapping[str, Any], **_: Any) -> dict[str, Any] | None:
        """The router, last in `task_routes`."""
        if any(options.get(key) for key in _DESTINATION):
            return None
        if _asking.get():
            return _OURS
        sending = _sending.get()
        if sending is None or sending.publishing is not self:
            return None  # nobody sends: there is nothing to count
        sending.queue = self._ahead.pop(sending.ticket, None)
        if sending.queue is None:
            sending.candidates = self.candidates(name, args, kwargs)
            sending.folds = sending.foldable and self._folds()
            if not sending.folds or is_heard(self._app):
                sending.question = self._ledger.ask_for(sending.ticket, sending.candidates)
        # Any of ours will do until the answer is there: where the message is sent, it gets its own.
        return {"queue": sending.queue or self._ledger.names[0]}

    def reserve(self, ticket: str, name: str, args: Any, kwargs: Any) -> str | None:
        """The queue where the ticket is counted from now on; None while Redis is away."""
        try:
            return self._ledger.reserve([(ticket, self.candidates(name, args, kwargs))])[0]
        except Unavailable:
            return None

    def next_in_turn(self, name: str, args: Any, kwargs: Any) -> str:
        """A queue without a look at the loads."""
        return self._next_among(self.candidates(name, args, kwargs))

    def _next_among(self, candidates: Sequence[int]) -> str:
        among = candidates or range(len(self._ledger.names))
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

    def _count_chosen(self, sending: Sending, routing_key: str | None) -> None:
        """What goes to one of our queues by its caller's choice, or by another route: also every retry."""
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


def _destination(options: Mapping[str, Any]) -> str | None:
    """The queue's name, as far as the options name one: an exchange has its own ways."""
    queue = options.get("queue")
    if queue is None or (options.get("exchange") and options.get("routing_key")):
        return options.get("routing_key")
    return queue if isinstance(queue, str) else str(queue.name)
