"""What is in the broker: messages that wait in its queues, and those that workers hold and have not acknowledged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson
import redis
from kombu.exceptions import OperationalError

from fairlead.celery.tickets import ticket_of_headers
from fairlead.dispatch.redis.errors import ERRORS
from fairlead.errors import Unavailable

PAGE = 500


class RedisBroker:
    """Kombu's keys in Redis, by kombu's own names for them."""

    def __init__(self, channel: Any, client: Any) -> None:
        self._channel = channel
        self._client = client

    def length(self, queue: str) -> int:
        return sum(int(self._execute("LLEN", key)) for key in self._keys(queue))

    def waiting(self, queue: str) -> set[str]:
        """The tickets in a queue. Read from where workers take to where producers put: what moves on is seen twice."""
        found: set[str] = set()
        for key in self._keys(queue):
            end = -1
            while messages := self._execute("LRANGE", key, end - PAGE + 1, end):
                found |= set(_tickets_of(_parsed(messages)))
                end -= PAGE
        return found

    def unacknowledged(self, queues: Sequence[str]) -> dict[str, set[str]]:
        """The tickets that workers were given, by queue."""
        found: dict[str, set[str]] = {queue: set() for queue in queues}
        for delivery in _parsed(self._values(self._channel.unacked_key)):
            message, _, queue = delivery
            if queue in found:
                found[queue] |= set(_tickets_of([message]))
        return found

    def _keys(self, queue: str) -> list[str]:
        return [self._channel._q_for_pri(queue, priority) for priority in self._channel.priority_steps]

    def _values(self, key: str) -> Iterator[bytes]:
        cursor: Any = 0
        while True:
            cursor, found = self._execute("HSCAN", key, cursor, "COUNT", PAGE)
            yield from found.values()
            if not int(cursor):
                return

    def _execute(self, command: str, key: str, *args: Any) -> Any:
        # Kombu's client puts the prefix before the keys of some commands only.
        prefixed = f"{self._channel.global_keyprefix}{key}"
        plain: Any = redis.Redis.execute_command
        return plain(self._client, command, prefixed, *args)


@contextlib.contextmanager
def opened(app: Any) -> Iterator[RedisBroker | None]:
    """None if the broker is not Redis: then nobody can look into it. Raises `Unavailable`."""
    try:
        with app.connection_for_read() as connection:
            if connection.transport.driver_type != "redis":
                yield None
                return
            channel = connection.default_channel
            with channel.conn_or_acquire() as client:
                yield RedisBroker(channel, client)
    except (OperationalError, *ERRORS) as error:
        raise Unavailable(f"the broker cannot be used now: {error}", public="the broker cannot be used now") from error


def _parsed(texts: Iterable[bytes]) -> Iterator[Any]:
    for text in texts:
        # What kombu cannot read either is no task.
        with contextlib.suppress(orjson.JSONDecodeError):
            yield orjson.loads(text)


def _tickets_of(messages: Iterable[Any]) -> Iterator[str]:
    for message in messages:
        # The first protocol of tasks has no headers; there a retry cannot be told from the first try.
        ticket = ticket_of_headers(message.get("headers") or {}) or message["properties"].get("correlation_id")
        if ticket:
            yield ticket
