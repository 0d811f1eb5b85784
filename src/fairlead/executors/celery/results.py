"""How results come back: from Redis as they are stored, from any other backend by asking.

One thread per process listens for all calls that are open. Nothing is unpickled: what is no JSON is no result.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import orjson

from fairlead.executors.celery.answers import Meta

log = logging.getLogger(__name__)

Heard = Callable[[str, Meta], None]
SWEEP_EVERY = 5.0
"""Seconds: the net under the messages, for a connection that broke without a word."""
AGAIN_AFTER = 0.5
POLL_EVERY = 0.5


class Results(Protocol):
    """`heard` is called from the thread, with every state of a task that is watched."""

    def start(self, heard: Heard) -> None: ...

    def watch(self, task_id: str) -> None: ...

    def unwatch(self, task_id: str) -> None: ...

    def close(self) -> None: ...


def results_of(app: Any) -> Results:
    from celery.backends.redis import RedisBackend

    return RedisResults(app.backend) if isinstance(app.backend, RedisBackend) else PolledResults(app.backend)


class RedisResults:
    """Celery publishes what it stores, on a channel with the name of its key. A task is looked up once when Redis has
    confirmed that it listens, so that nothing falls between the two."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._wishes: SimpleQueue[tuple[str, bool]] = SimpleQueue()
        self._open: set[str] = set()
        self._bell, self._rung = socket.socketpair()
        self._bell.setblocking(False)
        self._rung.setblocking(False)
        self._closed = False
        self._prefix = bytes(backend.get_key_for_task("_")).removesuffix(b"_")

    def start(self, heard: Heard) -> None:
        self._heard = heard
        self._thread = threading.Thread(target=self._run, name="fairlead-celery-results", daemon=True)
        self._thread.start()

    def watch(self, task_id: str) -> None:
        self._wishes.put((task_id, True))
        self._ring()

    def unwatch(self, task_id: str) -> None:
        self._wishes.put((task_id, False))
        self._ring()

    def close(self) -> None:
        self._closed = True
        self._ring()
        self._thread.join(timeout=2.0)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway
            self._bell.send(b".")

    def _run(self) -> None:
        away = False
        while not self._closed:
            pubsub = self._backend.client.pubsub()
            try:
                # A channel of nobody's, so that there is a connection to wait on before the first task.
                pubsub.subscribe("fairlead-celery-results", *map(self._key, self._open))
                away = self._listen(pubsub, away)
            except Exception as error:
                if not away:
                    log.warning("the results of Celery cannot be heard (%s); trying again", error)
                away = True
                time.sleep(AGAIN_AFTER)
            finally:
                with contextlib.suppress(Exception):
                    pubsub.close()
        self._bell.close()
        self._rung.close()

    def _listen(self, pubsub: Any, away: bool) -> bool:
        swept = time.monotonic()
        while not self._closed:
            self._follow_wishes(pubsub)
            confirmed = self._drain(pubsub)
            if confirmed and away:
                log.warning("the results of Celery are heard again")
                away = False
            if time.monotonic() - swept > SWEEP_EVERY:
                confirmed, swept = list(self._open), time.monotonic()
            self._look_up(confirmed)
            select.select([pubsub.connection._sock, self._rung], [], [], SWEEP_EVERY)
            with contextlib.suppress(BlockingIOError):
                self._rung.recv(4096)
        return away

    def _follow_wishes(self, pubsub: Any) -> None:
        begun: list[str] = []
        ended: list[str] = []
        with contextlib.suppress(Empty):
            while True:
                task_id, wanted = self._wishes.get_nowait()
                (begun if wanted else ended).append(task_id)
        self._open.update(begun)
        self._open.difference_update(ended)
        if begun:
            pubsub.subscribe(*map(self._key, begun))
        if ended:
            pubsub.unsubscribe(*map(self._key, ended))

    def _drain(self, pubsub: Any) -> list[str]:
        """The tasks that Redis now listens for; what it says of others is told at once."""
        confirmed = []
        while (message := pubsub.get_message(timeout=0)) is not None:
            task_id = bytes(message["channel"]).removeprefix(self._prefix).decode()
            if message["type"] == "subscribe":
                confirmed.append(task_id)
            elif message["type"] == "message":
                self._tell(task_id, message["data"])
        return confirmed

    def _look_up(self, task_ids: Iterable[str]) -> None:
        wanted = [task_id for task_id in task_ids if task_id in self._open]
        if wanted:
            for task_id, stored in zip(wanted, self._backend.client.mget(map(self._key, wanted)), strict=True):
                if stored is not None:
                    self._tell(task_id, stored)

    def _tell(self, task_id: str, stored: bytes) -> None:
        if task_id in self._open:
            self._heard(task_id, _read(stored))

    def _key(self, task_id: str) -> bytes:
        return self._prefix + task_id.encode()


class PolledResults:
    """A database, a memcached, a file: asked for every open task, twice a second."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._open: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def start(self, heard: Heard) -> None:
        self._heard = heard
        threading.Thread(target=self._run, name="fairlead-celery-results", daemon=True).start()

    def watch(self, task_id: str) -> None:
        with self._lock:
            self._open[task_id] = None

    def unwatch(self, task_id: str) -> None:
        with self._lock:
            self._open.pop(task_id, None)

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        away = False
        while not self._closing.wait(POLL_EVERY):
            with self._lock:
                known = dict(self._open)
            try:
                for task_id, before in known.items():
                    self._ask(task_id, before)
                away = False
            except Exception as error:
                if not away:
                    log.warning("the result backend of Celery cannot be asked (%s); trying again", error)
                away = True

    def _ask(self, task_id: str, before: Any) -> None:
        meta = self._backend._get_task_meta_for(task_id)
        said = meta["status"], meta.get("result")
        if said != before:
            with self._lock:
                if task_id in self._open:
                    self._open[task_id] = said
            self._heard(task_id, meta)


def _read(stored: bytes) -> Meta:
    try:
        meta = orjson.loads(stored)
        if isinstance(meta, dict) and "status" in meta:
            return meta
    except orjson.JSONDecodeError:
        pass
    error = {"exc_type": "EncodeError", "exc_module": "kombu", "exc_message": "the result is not JSON"}
    return {"status": "FAILURE", "result": error}
