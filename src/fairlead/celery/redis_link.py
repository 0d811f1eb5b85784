"""Runs Redis scripts, with connections that survive the forks of Celery's workers."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from time import monotonic
from typing import Any

from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import NoScriptError

from fairlead.dispatch.redis.errors import ERRORS, unavailable
from fairlead.dispatch.redis.scripts import script
from fairlead.dispatch.redis.servers import parse, sync_client
from fairlead.errors import Unavailable
from fairlead.outage import Outage

log = logging.getLogger("fairlead.celery")

SCRIPTS = "fairlead.celery.scripts"
TIMEOUT_S = 2.0
IN_TURN = "load balancing: Redis is not available, tasks go to queues in turn"
REST_S = 1.0
"""Seconds for which an unreachable Redis is not tried again. Otherwise every publish would wait for the timeout."""


class RedisLink:
    """Connections to one Redis. `run` executes a script, and raises `Unavailable` if Redis cannot be reached. An outage
    is logged once."""

    def __init__(self, url: Callable[[], str], outage: str = IN_TURN) -> None:
        self._url = url
        self._pid = 0
        self._client: Any = None
        # Idle connections of this process that have sent a script and read its reply.
        self._idle: list[Any] = []
        self._rests_until = 0.0
        self._outage = Outage(log, outage)

    def run(self, name: str, *args: str | int | bytes) -> Any:
        loaded = script(name, SCRIPTS)
        try:
            return self.execute("EVALSHA", loaded.sha, 0, *args)
        except NoScriptError:
            return self.execute("EVAL", loaded.source, 0, *args)

    def start(self, name: str, *args: str | int | bytes, again: Callable[[], Any] | None = None) -> PendingReply:
        """Start a script and return its pending reply, so that the caller can work meanwhile. If no reply arrives, the
        result of `again` is used instead, by default that of `run`."""
        return self.send("EVALSHA", script(name, SCRIPTS).sha, 0, *args, again=again or (lambda: self.run(name, *args)))

    def send(self, *command: str | int | bytes, again: Callable[[], Any]) -> PendingReply:
        """Send a command with as little overhead as possible, and return its pending reply. If no reply arrives, the
        result of `again` is used instead."""
        if monotonic() < self._rests_until or self._outage.reason is not None:
            return PendingReply(self, None, again)
        client = self.client
        connection = None
        try:
            try:
                connection = self._idle.pop()
            except IndexError:  # not checked beforehand, because another thread may take the last one
                connection = client.connection_pool.get_connection()
            connection.send_packed_command(connection.pack_command(*command), check_health=False)
        except ERRORS:
            self._drop(connection)
            connection = None
        return PendingReply(self, connection, again)

    def answer(self, connection: Any, again: Callable[[], Any]) -> Any:
        if connection is None:
            return again()
        try:
            answer = connection.read_response()
        except NoScriptError:
            self._idle.append(connection)
        except BaseException as error:
            self._drop(connection)
            if not isinstance(error, ERRORS):
                raise
        else:
            self._idle.append(connection)
            return answer
        return again()

    def _drop(self, connection: Any) -> None:
        if connection is not None:
            connection.disconnect()
            self.client.connection_pool.release(connection)

    def execute(self, *command: Any) -> Any:
        if monotonic() < self._rests_until:
            raise Unavailable(self._outage.reason or "Redis did not answer a moment ago")
        try:
            try:
                answer = self.client.execute_command(*command)
            except LostConnection:
                # The server has closed an idle connection. Every script tolerates being run twice.
                answer = self.client.execute_command(*command)
        except NoScriptError:
            raise
        except ERRORS as error:
            self._rests_until = monotonic() + REST_S
            translated = unavailable(error)
            self._outage.began(translated)
            raise translated from error
        if self._outage.reason is not None:
            self._outage.ended()
        return answer

    @property
    def client(self) -> Any:
        if self._pid != os.getpid():
            # A child must neither use nor close its parent's connections.
            self._idle = []
            self._client, self._pid = sync_client(parse(self._url()), timeout=TIMEOUT_S), os.getpid()
        return self._client

    def close(self) -> None:
        if self._client is not None and self._pid == os.getpid():
            with contextlib.suppress(*ERRORS):
                while self._idle:
                    self._drop(self._idle.pop())
                self._client.close()
            self._client, self._pid = None, 0


class PendingReply:
    """The reply to a command that has been sent. It is read when the caller needs it."""

    __slots__ = ("_again", "_connection", "_link")

    def __init__(self, link: RedisLink, connection: Any, again: Callable[[], Any]) -> None:
        self._link, self._connection, self._again = link, connection, again

    def answer(self) -> Any:
        """Read the reply. If there is none, return the result of `again`. Call this only once. Raises `Unavailable`."""
        return self._link.answer(self._connection, self._again)
