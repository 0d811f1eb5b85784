"""Chooses the queue and sends the message in one script, if the broker is the Redis that holds the counts.

One script takes one round trip instead of two, and nothing has to be undone when it fails. Kombu's transport puts a
message into its queue in `Channel._put`, which is patched once. If the name of the queue is needed before the message
is sent (`queue_is_observed`), the queue is reserved first. If anything about a message is unusual, kombu's transport
sends the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from celery.signals import after_task_publish, before_task_publish, task_sent
from kombu.utils.json import dumps

from fairlead.celery.private_api import patch_once, usable

_MARK = "\x00fairlead-queue\x00"
"""Placeholder for the queue's name until Redis has chosen it."""
_ESCAPED = dumps(_MARK)[1:-1]


class RedisPublisher(Protocol):
    """A publish in progress. `push` sends the message by script. Its argument `put` is a function that sends the
    message through kombu's transport instead, to the queue of this name. `channel` is None if kombu gathers several
    messages and sends them later."""

    task_id: str

    def push(self, channel: Any, message: dict[str, Any], put: Callable[[str], None]) -> None: ...


def queue_is_observed(app: Any) -> bool:
    """Return whether signal receivers or events need the name of the queue before the message is sent."""
    listened = before_task_publish.receivers or after_task_publish.receivers or task_sent.receivers
    return bool(listened or app.conf.task_send_sent_event)


def names_a_connection(options: Mapping[str, Any]) -> bool:
    """Return whether the options of a publish name a connection or a producer. The message must then be sent with
    it."""
    return any(options.get(key) for key in ("producer", "publisher", "connection"))


def can_publish_by_script(app: Any) -> bool:
    """Return whether the app uses kombu's Redis transport, and whether this transport has the private methods that the
    patch needs."""
    try:
        from kombu.transport import redis
    except ImportError:
        return False
    connection = app.connection_for_write()
    channel = getattr(connection.get_transport_cls(), "Channel", None)
    if channel not in (redis.Channel, redis.SentinelChannel) or connection.alt:
        return False
    return all(usable(channel, name, *parameters, fallback=_FALLBACK) for name, *parameters in _NEEDED)


_NEEDED = (
    ("_put", "self", "queue", "message"),
    ("_q_for_pri", "self", "queue", "pri"),
    ("_get_message_priority", "self", "message"),
)
_FALLBACK = "publishing takes one more round trip"


def patch_transport(current: Callable[[], RedisPublisher | None]) -> None:
    """Patch kombu's transport, once per process. `current` returns the publish in progress, or None if a message is not
    sent by a balancer."""
    from kombu.transport import redis

    patch_once(redis.Channel, "_put", lambda original: _choosing_queue(original, current))


def _choosing_queue(original: Any, current: Callable[[], RedisPublisher | None]) -> Any:
    def put(self: Any, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        publish = current()
        if publish is None or _task_id_of(message) != publish.task_id:
            original(self, queue, message, **kwargs)
            return

        def by_transport(chosen: str) -> None:
            message["properties"]["delivery_info"]["routing_key"] = chosen
            original(self, chosen, message, **kwargs)

        # A batch is sent later, all at once: only the queue can be chosen now.
        gathered = kwargs.get("_publish_batch") is not None
        publish.push(None if gathered else self, message, by_transport)

    return put


def _task_id_of(message: dict[str, Any]) -> Any:
    """Return the task id of a message: the header `id`, or the correlation id in messages of task protocol 1, which
    have no such header. The header comes first, since callers may set a correlation id of their own."""
    return message["headers"].get("id") or message["properties"].get("correlation_id")


def split_at_queue(channel: Any, message: dict[str, Any]) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Split the Redis key of a queue, and the message, into the parts before and after the queue's name, so that a
    script can insert the name. Returns (key parts, message parts), or None if a script cannot send this message."""
    if channel is None or getattr(channel, "_expires", None):  # queues with a time to live
        return None
    message["properties"]["delivery_info"]["routing_key"] = _MARK
    parts = dumps(message).split(_ESCAPED)
    if len(parts) != 2:
        return None
    after = channel._q_for_pri("", channel._get_message_priority(message, reverse=False))
    return (channel.global_keyprefix, after), (parts[0], parts[1])
