"""Calls of scripts from whatever process this is: Celery's workers fork."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from time import monotonic
from typing import Any

from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import NoScriptError

from fairlead.dispatch.redis.clients import parse, sync_client
from fairlead.dispatch.redis.errors import ERRORS, unavailable
from fairlead.dispatch.redis.scripts import script
from fairlead.errors import Unavailable
from fairlead.runtime.outage import Outage

log = logging.getLogger("fairlead.celery")

SCRIPTS = "fairlead.celery.scripts"
TIMEOUT_S = 2.0
REST_S = 1.0
"""For so long nothing is asked of a Redis that did not answer: each publish would wait for the timeout."""


class Link:
    """To one Redis. `run` raises `Unavailable` and says so in the log, once."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._pid = 0
        self._client: Any = None
        # Connections on which a script was asked for, and answered; of this process only.
        self._idle: list[Any] = []
        self._rests_until = 0.0
        self._outage = Outage(log, "load balancing: Redis cannot be used, tasks go to queues in turn")

    def run(self, name: str, *args: str | int | bytes) -> Any:
        found = script(name, SCRIPTS)
        try:
            return self.execute("EVALSHA", found.sha, 0, *args)
        except NoScriptError:
            return self.execute("EVAL", found.source, 0, *args)

    def ask(self, name: str, *args: str | int | bytes, again: Callable[[], Any] | None = None) -> Question:
        """As `run`, but the answer is waited for when it is needed: the caller has work to do meanwhile. Without one,
        the script is run as usual, or `again`."""
        return self.send("EVALSHA", script(name, SCRIPTS).sha, 0, *args, again=again or (lambda: self.run(name, *args)))

    def send(self, *command: str | int | bytes, again: Callable[[], Any]) -> Question:
        """A command, with as little around it as can be."""
        if monotonic() < self._rests_until or self._outage.reason is not None:
            return Question(self, None, again)
        client = self.client
        connection = None
        try:
            try:
                connection = self._idle.pop()
            except IndexError:  # not asked before: another thread may take the last one meanwhile
                connection = client.connection_pool.get_connection()
            connection.send_packed_command(connection.pack_command(*command), check_health=False)
        except ERRORS:
            self._drop(connection)
            connection = None
        return Question(self, connection, again)

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
                # An idle connection that the server has closed meanwhile. All scripts may be run twice.
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
            # A connection of the parent's must not be used, nor closed, by its child.
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


class Question:
    """What Redis was asked, and whose answer is waited for when it is needed."""

    __slots__ = ("_again", "_connection", "_link")

    def __init__(self, link: Link, connection: Any, again: Callable[[], Any]) -> None:
        self._link, self._connection, self._again = link, connection, again

    def answer(self) -> Any:
        """Once. What was not answered is asked once more, as `again` says. Raises `Unavailable`."""
        return self._link.answer(self._connection, self._again)
