"""Reads from the broker: its URL, the messages that wait in its queues, and the messages that workers have not
acknowledged. Messages are identified by their tickets; see `task_counts.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
import redis
from kombu.exceptions import OperationalError

from fairlead.celery.private_api import usable
from fairlead.celery.task_counts import ticket_of_headers
from fairlead.dispatch.redis.errors import ERRORS
from fairlead.errors import ConfigError, Unavailable

PAGE = 500
_CERT_REQS = {0: "none", 1: "optional", 2: "required"}
_FALLBACK = "a reconcile pass does not compare the counts with the messages in the broker"


def redis_of_broker(app: Any) -> str:
    """Return the URL of an app's broker as a Redis URL. Raises `ConfigError` if the broker is not Redis."""
    connection = app.connection_for_write()
    urls = [urlsplit(url) for url in connection.alt or [connection.as_uri(include_password=True)]]
    first = urls[0]
    if first.scheme == "redis+socket":
        return f"unix://{first.path}?{first.query}".rstrip("?")
    secure = first.scheme == "rediss" or bool(connection.ssl)
    scheme, query = "rediss" if secure else "redis", _tls_of(connection.ssl) or first.query
    if first.scheme in ("redis", "rediss"):
        return str(first._replace(scheme=scheme, query=query).geturl())
    if first.scheme == "sentinel":
        login, at, _ = first.netloc.rpartition("@")
        hosts = ",".join(url.netloc.rpartition("@")[2] for url in urls)
        master = connection.transport_options.get("master_name", "mymaster")
        database = first.path.strip("/") or "0"
        return f"{scheme}+sentinel://{login}{at}{hosts}/{master}/{database}" + (f"?{query}" if query else "")
    raise ConfigError([f"redis_url: the broker is {first.scheme}, not Redis; name a Redis for the counts"])


def _tls_of(ssl: Any) -> str:
    """Convert Celery's setting `broker_use_ssl` to the query string of a Redis URL."""
    if not isinstance(ssl, dict):
        return ""
    return urlencode(
        {key: _CERT_REQS.get(value, value) if key == "ssl_cert_reqs" else value for key, value in ssl.items()}
    )


class RedisBroker:
    """Reads the Redis keys in which kombu stores queues and unacknowledged messages."""

    def __init__(self, channel: Any, client: Any) -> None:
        self._channel = channel
        self._client = client

    def length(self, queue: str) -> int:
        return sum(int(self._execute("LLEN", key)) for key in self._keys(queue))

    def waiting(self, queue: str) -> set[str]:
        """Return the tickets of the messages in a queue. The queue is read from the end that workers consume, so a
        message whose index changes meanwhile is not missed."""
        tickets: set[str] = set()
        for key in self._keys(queue):
            end = -1
            while messages := self._execute("LRANGE", key, end - PAGE + 1, end):
                tickets |= set(_tickets_of(_parsed(messages)))
                end -= PAGE
        return tickets

    def unacknowledged(self, queues: Sequence[str]) -> dict[str, set[str]]:
        """Return the tickets of the messages that were delivered and not yet acknowledged, by queue."""
        tickets: dict[str, set[str]] = {queue: set() for queue in queues}
        for delivery in _parsed(self._values(self._channel.unacked_key)):
            message, _, queue = delivery
            if queue in tickets:
                tickets[queue] |= set(_tickets_of([message]))
        return tickets

    def _keys(self, queue: str) -> list[str]:
        return [self._channel._q_for_pri(queue, priority) for priority in self._channel.priority_steps]

    def _values(self, key: str) -> Iterator[bytes]:
        cursor: Any = 0
        while True:
            cursor, tickets = self._execute("HSCAN", key, cursor, "COUNT", PAGE)
            yield from tickets.values()
            if not int(cursor):
                return

    def _execute(self, command: str, key: str, *args: Any) -> Any:
        # Kombu's client adds the prefix to the keys of some commands only.
        prefixed = f"{self._channel.global_keyprefix}{key}"
        plain: Any = redis.Redis.execute_command
        return plain(self._client, command, prefixed, *args)


@contextlib.contextmanager
def opened(app: Any) -> Iterator[RedisBroker | None]:
    """Open the broker for reading. Yields None if the broker cannot be read, because it is not Redis or kombu's private
    functions are not as expected. Raises `Unavailable`."""
    try:
        with app.connection_for_read() as connection:
            if connection.transport.driver_type != "redis":
                yield None
                return
            channel = connection.default_channel
            if not usable(type(channel), "_q_for_pri", "self", "queue", "pri", fallback=_FALLBACK):
                yield None
                return
            with channel.conn_or_acquire() as client:
                yield RedisBroker(channel, client)
    except (OperationalError, *ERRORS) as error:
        raise Unavailable(f"the broker is not available: {error}", public="the broker is not available") from error


def _parsed(texts: Iterable[bytes]) -> Iterator[Any]:
    for text in texts:
        # Skip messages that are not JSON: kombu cannot read them either, so they are not tasks.
        with contextlib.suppress(orjson.JSONDecodeError):
            yield orjson.loads(text)


def _tickets_of(messages: Iterable[Any]) -> Iterator[str]:
    for message in messages:
        # Messages of task protocol 1 have no headers. Their ticket is the task id, so a retry looks like the first
        # attempt.
        ticket = ticket_of_headers(message.get("headers") or {}) or message["properties"].get("correlation_id")
        if ticket:
            yield ticket
