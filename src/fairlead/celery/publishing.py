"""Assigns queues to tasks: a Celery router reserves a queue, and a failed publish releases it.

Celery passes a router neither the task's id nor the outcome of the publish, so `app.send_task` is wrapped: the wrapper
creates the task's id first, and releases the reservation if the publish raises. If the broker is the Redis that holds
the counts, the script that sends the message also chooses its queue (`redis_publish.py`). Otherwise Redis chooses the
queue while Celery builds the message: the router sends the request to Redis, and a wrapper of `amqp.send_task_message`
reads the reply.

Celery's `group._apply_tasks` sends the tasks of all groups, whichever app they belong to. This function is patched once
per process, to reserve the queues of many tasks in one call. If its signature is not as expected, each task of a group
reserves its queue by itself.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from celery import group, uuid

from fairlead.celery.private_api import patch_once, usable
from fairlead.celery.redis_link import PendingReply
from fairlead.celery.redis_publish import (
    can_publish_by_script,
    names_a_connection,
    patch_transport,
    queue_is_observed,
    split_at_queue,
)
from fairlead.celery.strategies import Candidates
from fairlead.celery.task_counts import TaskCounts, ticket_of
from fairlead.celery.user_extraction import HEADER, UserExtractor
from fairlead.errors import Unavailable

BATCH = 1000
"""How many tasks of a group get their queues in one call."""
_DESTINATION = ("queue", "exchange", "routing_key")
_NO_INTERCEPTION = "a publish waits for its queue, and a task sent to a queue by name is counted when it starts"
_OURS = {"queue": "?"}
"""The route that the router returns while `_would_choose` tests whether the balancer would choose the queue of a
task."""


@dataclass(slots=True)
class Sending:
    """The state of one call of `send_task`. `queue` is the queue that the task is counted in. While `reply` is set,
    Redis is choosing one of the queues in `candidates`, and the choice has not been read yet. With `by_script`, a Lua
    script of the balancer puts the message into its queue."""

    publisher: Publisher
    task_id: str
    ticket: str
    first: bool
    queue: str | None = None
    published: bool = False
    reply: PendingReply | None = None
    candidates: tuple[int, ...] = ()
    may_use_script: bool = False
    by_script: bool = False

    def push(self, channel: Any, message: dict[str, Any], put: Callable[[str], None]) -> None:
        self.publisher.push(self, channel, message, put)


_sending: ContextVar[Sending | None] = ContextVar("fairlead_celery_sending", default=None)


def _current_publish() -> Sending | None:
    sending = _sending.get()
    return sending if sending is not None and sending.by_script else None


_asking: ContextVar[bool] = ContextVar("fairlead_celery_asking", default=False)


class Publisher:
    def __init__(
        self, app: Any, counts: TaskCounts, candidates: Candidates, users: UserExtractor, *, own_redis: bool
    ) -> None:
        self._app = app
        self._counts = counts
        self._names = frozenset(counts.names)
        self._candidates = candidates
        self._users = users
        self._turn = itertools.count()
        # Queues, by ticket, that are reserved before Celery calls the router: for tasks of groups, and for `enqueue`.
        self._ahead: dict[str, str] = {}
        self._send_message: Any = None
        self._script_publishing: bool | None = None if own_redis else False

    def connect(self) -> None:
        self._send = self._app.send_task
        self._signature = inspect.signature(self._send)
        self._app.send_task = self.send_task
        self._intercepts = self._intercept_messages()

    def _intercept_messages(self) -> bool:
        """Make Celery call `send_message` instead of its own function, which is a cached attribute of `app.amqp`."""
        amqp = self._app.amqp
        if not usable(type(amqp), "_create_task_sender", "self", fallback=_NO_INTERCEPTION):
            return False
        amqp.__dict__["send_task_message"] = self.send_message
        return True

    def disconnect(self) -> None:
        if self._app.__dict__.get("send_task") == self.send_task:
            del self._app.send_task
        if self._app.amqp.__dict__.get("send_task_message") == self.send_message:
            del self._app.amqp.send_task_message

    # -- one task --------------------------------------------------------------------------------------------------

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """Replaces Celery's `send_task`: creates the task's id, and releases the task's reservation if the publish
        fails."""
        if more:
            bound = self._signature.bind(name, args, kwargs, *more, **options).arguments
            options = {**bound.pop("options", {}), **bound}
            name, args, kwargs = options.pop("name"), options.pop("args"), options.pop("kwargs")
        task_id = options["task_id"] = options.get("task_id") or uuid()
        retries, nesting = options.get("retries"), options.get("replaced_task_nesting")
        sending = Sending(self, task_id, ticket_of(task_id, retries, nesting), not (retries or nesting))
        if user := self._users.inherited(name, args, kwargs):
            options["headers"] = {**(options.get("headers") or {}), HEADER: user}
        sending.may_use_script = self._script_publishing is not False and not names_a_connection(options)
        token = _sending.set(sending)
        try:
            result = self._send(name, args, kwargs, **options)
            if not self._intercepts:
                self._ahead.pop(sending.ticket, None)
            return result
        except BaseException:
            self._settle(sending)
            if sending.queue is not None and not sending.published:
                self._release([(sending.queue, sending.ticket)])
            raise
        finally:
            _sending.reset(token)

    def send_message(self, producer: Any, name: str, message: Any, **options: Any) -> Any:
        """Replaces Celery's `send_task_message`: gives the message its queue, and then calls the original. The original
        is created on first use, because creating it reads the app's configuration."""
        if self._send_message is None:
            self._send_message = self._app.amqp._create_task_sender()
        sending = _sending.get()
        if sending is None or sending.publisher is not self:
            return self._send_message(producer, name, message, **options)
        if sending.reply is not None:
            options["queue"] = self._settle(sending)
        elif sending.queue is None and not sending.by_script:
            self._count_chosen(sending, _destination(options))
        sent = self._send_message(producer, name, message, **options)
        sending.published = True
        return sent

    def _publishes_by_script(self) -> bool:
        """Return whether messages are sent by a Lua script. This is determined when the first message is sent, because
        the app has been configured by then."""
        if self._script_publishing is None:
            self._script_publishing = can_publish_by_script(self._app)
            if self._script_publishing:
                patch_transport(_current_publish)
        return self._script_publishing

    def push(self, sending: Sending, channel: Any, message: dict[str, Any], put: Callable[[str], None]) -> None:
        """Send the message with one Lua script, which also chooses its queue if none was chosen before. If the message
        cannot be sent by a script, or Redis is unavailable, `put` sends it through kombu's transport."""
        parts = split_at_queue(channel, message)
        try:
            if parts is None:
                chosen = sending.queue or self._counts.reserve([(sending.ticket, sending.candidates)])[0]
                sending.queue = chosen
                put(chosen)
            elif sending.queue is None:
                sending.queue = self._counts.push(sending.ticket, sending.candidates, *parts)
            else:
                self._counts.deliver(*(sending.queue.join(part) for part in parts))
        except Unavailable:
            put(sending.queue or self._next_among(sending.candidates))
        sending.published = True

    def _settle(self, sending: Sending) -> str | None:
        """Read and return the queue that Redis chose. If Redis is not available, return the next queue (round robin),
        and do not count the task. Returns None if no choice was requested."""
        reply, sending.reply = sending.reply, None
        if reply is None:
            return None
        try:
            sending.queue = self._counts.reserved_queue(reply)
            return sending.queue
        except Unavailable:
            sending.by_script = False
            return self._next_among(sending.candidates)

    def route(self, name: str, args: Any, kwargs: Any, options: Mapping[str, Any], **_: Any) -> dict[str, Any] | None:
        """The last router in `task_routes`: return a balanced queue for a task, or a placeholder if the queue is chosen
        later. Returns None if the task already has a destination, or if Celery asks for a route without sending the
        task."""
        if any(options.get(key) for key in _DESTINATION):
            return None
        if _asking.get():
            return _OURS
        sending = _sending.get()
        if sending is None or sending.publisher is not self:
            return None  # routing without sending: nothing to count
        sending.queue = self._ahead.pop(sending.ticket, None)
        if sending.queue is None:
            sending.candidates = self.candidates(name, args, kwargs)
            sending.by_script = sending.may_use_script and self._publishes_by_script()
            if not sending.by_script or queue_is_observed(self._app):
                sending.reply = self._counts.start_reserve(sending.ticket, sending.candidates)
            if not self._intercepts and sending.reply is not None:
                return {"queue": self._settle(sending)}
        # A placeholder until the reply is read and the message is sent.
        return {"queue": sending.queue or self._counts.names[0]}

    def reserve(self, ticket: str, name: str, args: Any, kwargs: Any) -> str | None:
        """Choose a queue and count the task there under `ticket`. Returns None while Redis is not available."""
        try:
            return self._counts.reserve([(ticket, self.candidates(name, args, kwargs))])[0]
        except Unavailable:
            return None

    def next_in_turn(self, name: str, args: Any, kwargs: Any) -> str:
        """Return the next of the candidate queues (round robin), regardless of their loads."""
        return self._next_among(self.candidates(name, args, kwargs))

    def _next_among(self, candidates: Sequence[int]) -> str:
        among = candidates or range(len(self._counts.names))
        return self._counts.names[among[next(self._turn) % len(among)]]

    def candidates(self, name: str, args: Any, kwargs: Any) -> tuple[int, ...]:
        return self._candidates(self._users.of(name, args, kwargs))

    def enqueue(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send a task to a balanced queue, even if other routes declare another queue."""
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
            self._release_unused([ticket])

    def _count_chosen(self, sending: Sending, routing_key: str | None) -> None:
        """Count a task that goes to a balanced queue which was not chosen by the balancer, but by the caller or another
        route. Every retry is such a task."""
        ahead = self._ahead.pop(sending.ticket, None)
        if ahead is not None and ahead != routing_key:
            self._release([(ahead, sending.ticket)])
        if routing_key not in self._names:
            return
        try:
            if ahead != routing_key:
                self._count(routing_key, sending)
            sending.queue = routing_key
        except Unavailable:
            pass  # the task is counted when it starts

    def _count(self, queue: str, sending: Sending) -> None:
        if sending.first:
            self._counts.expect(queue, sending.ticket)
        else:
            self._counts.place("pending", [(queue, sending.ticket)])

    # -- groups ----------------------------------------------------------------------------------------------------

    def spread(self, tasks: Iterable[Any], options: Mapping[str, Any], apply: Callable[..., Any]) -> Iterator[Any]:
        """Send the tasks of a group with `apply`, and yield its results. The queues of up to `BATCH` tasks are reserved
        in one call."""
        ahead: list[str] = []

        def reserved() -> Iterator[Any]:
            rest = iter(tasks)
            while batch := list(itertools.islice(rest, BATCH)):
                ahead.extend(self._reserve_ahead([signature for signature, *_ in batch], options))
                yield from batch

        try:
            yield from apply(reserved())
        finally:
            self._release_unused(ahead)

    def _reserve_ahead(self, signatures: Sequence[Any], options: Mapping[str, Any]) -> list[str]:
        """Choose the queues for the tasks of a group before they are sent, and count the tasks there, in one request.
        Returns the tickets of these tasks. Tasks of nested chains and groups get their queues when they are sent."""
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
            queues = self._counts.reserve(list(calls.items())) if calls else []
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
            route = self._app.amqp.router.lookup_route(signature.task, signature.args, signature.kwargs, {}, task)
            return route is _OURS
        finally:
            _asking.reset(token)

    # -- undoing ---------------------------------------------------------------------------------------------------

    def _release_unused(self, tickets: Iterable[str]) -> None:
        self._release([(queue, ticket) for ticket in tickets if (queue := self._ahead.pop(ticket, None))])

    def _release(self, tasks: Sequence[tuple[str, str]]) -> None:
        if not tasks:
            return
        with contextlib.suppress(Unavailable):  # a reconcile pass repairs the count
            self._counts.place("", tasks)


def _destination(options: Mapping[str, Any]) -> str | None:
    """Return the routing key that the options of a publish lead to: the routing key of an explicit exchange, or the
    name of the queue."""
    queue = options.get("queue")
    if queue is None or (options.get("exchange") and options.get("routing_key")):
        return options.get("routing_key")
    return queue if isinstance(queue, str) else str(queue.name)


# -- the patch for groups --------------------------------------------------------------------------------------------

_publishers: WeakKeyDictionary[Any, Publisher] = WeakKeyDictionary()


def spread_groups_of(app: Any, publisher: Publisher) -> None:
    fallback = "each task of a group reserves its queue by itself"
    if usable(group, "_apply_tasks", "self", "tasks", "producer", "app", fallback=fallback):
        _publishers[app] = publisher
        patch_once(group, "_apply_tasks", _spreading)


def leave_groups_of(app: Any) -> None:
    _publishers.pop(app, None)


def _spreading(original: Any) -> Any:
    def apply_tasks(self: Any, tasks: Any, producer: Any = None, app: Any = None, *more: Any, **options: Any) -> Any:
        publisher = _publishers.get(app or self.app)
        if publisher is None:
            return original(self, tasks, producer, app, *more, **options)
        return publisher.spread(
            tasks, options, lambda reserved: original(self, reserved, producer, app, *more, **options)
        )

    return apply_tasks
