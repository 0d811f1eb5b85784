"""On a broker in Redis, choosing a queue and sending the message there are one script.

One round trip instead of two, and nothing to undo when it fails. Celery's transport puts a message into a queue in
`Channel._put`; this puts ours before it, once. Where the queue must be known earlier (`is_heard`) it is chosen first;
where anything is unusual, the transport sends the message itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Protocol

from celery.signals import after_task_publish, before_task_publish, task_sent
from kombu.utils.json import dumps

_MARK = "\x00fairlead-queue\x00"
"""Stands for the queue's name until Redis has chosen one."""
_ESCAPED = dumps(_MARK)[1:-1]
_OURS = "_of_fairlead"
"""On our function. `__wrapped__` would not tell it from one that somebody else, as tracing, has put there."""


class Folding(Protocol):
    """A call that is being sent. `push` gets the channel (None: it sends nothing now), the message, and the transport's
    own way to put it."""

    task_id: str

    def push(self, channel: Any, message: dict[str, Any], put: Callable[[str], None]) -> None: ...


def is_heard(app: Any) -> bool:
    """Whether somebody is told the queue's name before the message is sent, and it must be known by then."""
    listened = before_task_publish.receivers or after_task_publish.receivers or task_sent.receivers
    return bool(listened or app.conf.task_send_sent_event)


def goes_elsewhere(options: Mapping[str, Any]) -> bool:
    """By a connection that the caller chose."""
    return any(options.get(key) for key in ("producer", "publisher", "connection"))


def broker_folds(app: Any) -> bool:
    """Whether its transport is the one that we know."""
    try:
        from kombu.transport import redis
    except ImportError:
        return False
    connection = app.connection_for_write()
    channel = getattr(connection.get_transport_cls(), "Channel", None)
    known = channel in (redis.Channel, redis.SentinelChannel)
    return known and not connection.alt and all(hasattr(channel, name) for name in _NEEDED)


_NEEDED = ("_put", "_q_for_pri", "_get_message_priority", "global_keyprefix")


def listen(current: Callable[[], Folding | None]) -> None:
    """`current` tells whose message it is, if it is one of ours."""
    from kombu.transport import redis

    if not hasattr(redis.Channel._put, _OURS):
        redis.Channel._put = _folded(redis.Channel._put, current)


def _folded(original: Any, current: Callable[[], Folding | None]) -> Any:
    @wraps(original)
    def put(self: Any, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        folding = current()
        if folding is None or _task_id_of(message) != folding.task_id:
            original(self, queue, message, **kwargs)
            return

        def by_transport(chosen: str) -> None:
            message["properties"]["delivery_info"]["routing_key"] = chosen
            original(self, chosen, message, **kwargs)

        # What is gathered in a batch is sent later, all at once: only the queue can be chosen now.
        gathered = kwargs.get("_publish_batch") is not None
        folding.push(None if gathered else self, message, by_transport)

    setattr(put, _OURS, True)
    return put


def _task_id_of(message: dict[str, Any]) -> Any:
    """Callers may give a correlation id of their own; the first protocol of tasks has no other."""
    return message["headers"].get("id") or message["properties"].get("correlation_id")


def parted(channel: Any, message: dict[str, Any]) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """The broker's key and the message, each before and after the queue's name. None: it is not as we know it."""
    if channel is None or getattr(channel, "_expires", None):  # queues that have a time to live
        return None
    message["properties"]["delivery_info"]["routing_key"] = _MARK
    parts = dumps(message).split(_ESCAPED)
    if len(parts) != 2:
        return None
    after = channel._q_for_pri("", channel._get_message_priority(message, reverse=False))
    return (channel.global_keyprefix, after), (parts[0], parts[1])
