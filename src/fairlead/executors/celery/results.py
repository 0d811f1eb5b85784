"""Receives the results of Celery tasks, and converts them to the outcome of a call or to a progress report.

A result backend in Redis publishes results; any other backend is polled. One thread per process serves all open calls.
Results are never unpickled: a result that is not JSON is a failure. A `Meta` is the metadata that Celery's result
backends store for a task; only its `status` and `result` are used here.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import orjson

from fairlead.domain.json_codec import NotJson, from_json
from fairlead.domain.retry import BAD_RESULT, EXCEPTION, PERMANENT, RETRY_ASKED, TIMEOUT, WORKER_DIED, Failure
from fairlead.executors.call_outcome import encoded, enveloped, shortened, storable, too_large, usage_in
from fairlead.executors.port import Call, OutputTooLarge, Success

Meta = Mapping[str, Any]

ENDED = frozenset({"SUCCESS", "FAILURE", "REVOKED"})
STARTED = "STARTED"
_OWN_STATES = frozenset({"PENDING", "RECEIVED", STARTED, "RETRY", "REJECTED", "IGNORED"})

# The error code and whether it is retryable, by the top-level package and the name of the exception.
_MEANING = {
    ("fairlead", "Permanent"): (PERMANENT, False),
    ("fairlead", "Retry"): (RETRY_ASKED, True),
    ("billiard", "WorkerLostError"): (WORKER_DIED, True),
    ("billiard", "TimeLimitExceeded"): (TIMEOUT, True),
    ("billiard", "SoftTimeLimitExceeded"): (TIMEOUT, True),
    ("celery", "NotRegistered"): (PERMANENT, False),
    ("kombu", "EncodeError"): (BAD_RESULT, False),
    ("builtins", "TimeoutError"): (TIMEOUT, True),
}


def outcome_of(meta: Meta, *, raw: bool, max_result: int) -> Success | Failure:
    """The outcome of a call, from the metadata of its ended task."""
    if meta["status"] == "REVOKED":
        return _revoked(_message(meta.get("result")))
    if meta["status"] == "FAILURE":
        trace = meta.get("traceback")
        failure = _failed(meta.get("result"))
        return replace(failure, traceback=shortened(trace)) if isinstance(trace, str) and trace else failure
    result = meta.get("result")
    if raw:
        outcome = encoded(result, max_result)
        return replace(outcome, usage=usage_in(result)) if isinstance(outcome, Success) else outcome
    outcome = enveloped(result)
    if isinstance(outcome, Success) and len(outcome.data_json) > max_result:
        return too_large(len(outcome.data_json), max_result)
    return outcome


def report_progress(call: Call, meta: Meta) -> None:
    """Report the progress of a task. The task sets it with `update_state(state="PROGRESS", meta={"fraction": 0.3,
    "message": "..."})`, or with `current` and `total` in place of `fraction`. `output` is the task's output so far, a
    text or a list of chunks. It is repeated in every report, because a report may be lost or arrive twice."""
    report = meta.get("result")
    if meta["status"] in _OWN_STATES or not isinstance(report, dict):
        return
    details = {name: value for name, value in report.items() if name not in ("fraction", "message", "self", "output")}
    with contextlib.suppress(TypeError, ValueError):  # a malformed report must not fail the call
        if "output" in report:
            _emit_new(call, report["output"])
            if len(report) == 1:
                return
        call.progress(_fraction(report), report.get("message"), **details)


def _emit_new(call: Call, so_far: Any) -> None:
    """Emit what the output of a task has more than was emitted before."""
    known = [] if call.output is None else call.output.chunks
    with contextlib.suppress(OutputTooLarge):  # the call fails when the task has ended
        if isinstance(so_far, list):
            for chunk in so_far[len(known) :]:
                call.emit(chunk)
        elif isinstance(so_far, str):
            text = "".join(map(str, map(orjson.loads, known)))
            if so_far.startswith(text):
                call.emit(so_far[len(text) :])


def _fraction(report: Mapping[str, Any]) -> float | None:
    if "fraction" in report:
        return float(report["fraction"])
    if report.get("total") and "current" in report:
        return float(report["current"]) / float(report["total"])
    return None


def _failed(error: Any) -> Failure:
    if isinstance(error, BaseException):  # from backends that Celery decodes itself
        error = {"exc_type": type(error).__name__, "exc_module": type(error).__module__, "exc_message": error.args}
    if not isinstance(error, dict):
        return Failure(EXCEPTION, storable(str(error)), retryable=True)
    name, module = str(error.get("exc_type", "Exception")), str(error.get("exc_module", ""))
    text = _message(error)
    code, retryable = _MEANING.get((module.partition(".")[0], name), (EXCEPTION, True))
    if name == "NotRegistered":
        return Failure(code, storable(f"the task is not registered with the Celery worker: {text}"), retryable)
    ours = module.partition(".")[0] == "fairlead"
    return Failure(code, storable(text if ours and text else f"{name}: {text}"), retryable)


def _revoked(reason: str) -> Failure:
    if "expired" in reason:
        return Failure(TIMEOUT, "the Celery task expired before a worker took it", retryable=True)
    return Failure(PERMANENT, storable(f"the Celery task was revoked: {reason or 'no reason given'}"), retryable=False)


def _message(error: Any) -> str:
    message = error.get("exc_message", "") if isinstance(error, dict) else error
    if isinstance(message, list | tuple):
        return ", ".join(str(part) for part in message)
    return "" if message is None else str(message)


log = logging.getLogger("fairlead.celery")

OnState = Callable[[str, Meta], None]
SWEEP_EVERY = 5.0
"""Seconds between two reads of all open tasks, in case messages were lost with a connection."""
AGAIN_AFTER = 0.5
POLL_EVERY = 0.5


class ResultBackend(Protocol):
    """Watches the states of tasks. `on_state` is called for every state of a watched task, in the thread of the
    backend."""

    def start(self, on_state: OnState) -> None: ...

    def watch(self, task_id: str) -> None: ...

    def unwatch(self, task_id: str) -> None: ...

    def close(self) -> None: ...


def results_of(app: Any) -> ResultBackend:
    from celery.backends.redis import RedisBackend

    return RedisResults(app.backend) if isinstance(app.backend, RedisBackend) else PolledResults(app.backend)


class RedisResults:
    """Receives results that Celery publishes in Redis, each on a channel with the name of the result's key. After Redis
    has confirmed the subscription for a task, the stored result is read once, in case it was published before."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._changes: SimpleQueue[tuple[str, bool]] = SimpleQueue()
        self._open: set[str] = set()
        self._wakeup_writer, self._wakeup_reader = socket.socketpair()
        self._wakeup_writer.setblocking(False)
        self._wakeup_reader.setblocking(False)
        self._closed = False
        self._polls = False
        self._prefix = bytes(backend.get_key_for_task("_")).removesuffix(b"_")

    def start(self, on_state: OnState) -> None:
        self._on_state = on_state
        self._thread = threading.Thread(target=self._run, name="fairlead-celery-results", daemon=True)
        self._thread.start()

    def watch(self, task_id: str) -> None:
        self._changes.put((task_id, True))
        self._wake()

    def unwatch(self, task_id: str) -> None:
        self._changes.put((task_id, False))
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()
        self._thread.join(timeout=2.0)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full: the thread wakes up anyway
            self._wakeup_writer.send(b".")

    def _run(self) -> None:
        away = False
        while not self._closed:
            pubsub = self._backend.client.pubsub()
            try:
                # Also subscribe to an unused channel, so that there is a connection to wait on before the first task.
                pubsub.subscribe("fairlead-celery-results", *map(self._key, self._open))
                away = self._listen(pubsub, away)
            except Exception as error:
                if not away:
                    log.warning("cannot subscribe to Celery results (%s); trying again", error)
                away = True
                time.sleep(AGAIN_AFTER)
            finally:
                with contextlib.suppress(Exception):
                    pubsub.close()
        self._wakeup_writer.close()
        self._wakeup_reader.close()

    def _listen(self, pubsub: Any, away: bool) -> bool:
        swept = time.monotonic()
        sockets, patience = self._sockets(pubsub)
        while not self._closed:
            self._apply_changes(pubsub)
            confirmed = self._drain(pubsub)
            if confirmed and away:
                log.warning("subscribed to Celery results again")
                away = False
            if time.monotonic() - swept > SWEEP_EVERY:
                confirmed, swept = list(self._open), time.monotonic()
            self._look_up(confirmed)
            select.select(sockets, [], [], patience)
            with contextlib.suppress(BlockingIOError):
                self._wakeup_reader.recv(4096)
        return away

    def _sockets(self, pubsub: Any) -> tuple[list[socket.socket], float]:
        """The sockets to wait on, and the seconds to wait. The socket of the Redis client is a private attribute of
        redis-py. If this attribute is missing, the wait is short and the client is polled."""
        own = getattr(pubsub.connection, "_sock", None)
        if isinstance(own, socket.socket):
            return [own, self._wakeup_reader], SWEEP_EVERY
        if not self._polls:
            log.warning("this version of redis-py hides its socket; polling for Celery results every %g s", POLL_EVERY)
        self._polls = True
        return [self._wakeup_reader], POLL_EVERY

    def _apply_changes(self, pubsub: Any) -> None:
        begun: list[str] = []
        ended: list[str] = []
        with contextlib.suppress(Empty):
            while True:
                task_id, wanted = self._changes.get_nowait()
                (begun if wanted else ended).append(task_id)
        self._open.update(begun)
        self._open.difference_update(ended)
        if begun:
            pubsub.subscribe(*map(self._key, begun))
        if ended:
            pubsub.unsubscribe(*map(self._key, ended))

    def _drain(self, pubsub: Any) -> list[str]:
        """Process all messages that have arrived. Returns the ids of the tasks whose subscriptions were confirmed."""
        confirmed = []
        while (message := pubsub.get_message(timeout=0)) is not None:
            task_id = bytes(message["channel"]).removeprefix(self._prefix).decode()
            if message["type"] == "subscribe":
                confirmed.append(task_id)
            elif message["type"] == "message":
                self._notify(task_id, message["data"])
        return confirmed

    def _look_up(self, task_ids: Iterable[str]) -> None:
        wanted = [task_id for task_id in task_ids if task_id in self._open]
        if wanted:
            for task_id, stored in zip(wanted, self._backend.client.mget(map(self._key, wanted)), strict=True):
                if stored is not None:
                    self._notify(task_id, stored)

    def _notify(self, task_id: str, stored: bytes) -> None:
        if task_id in self._open:
            self._on_state(task_id, _read(stored))

    def _key(self, task_id: str) -> bytes:
        return self._prefix + task_id.encode()


class PolledResults:
    """Polls a result backend that is not Redis (a database, memcached, files): reads each open task twice a second."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._open: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def start(self, on_state: OnState) -> None:
        self._on_state = on_state
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
                    self._poll(task_id, before)
                away = False
            except Exception as error:
                if not away:
                    log.warning("cannot read from the Celery result backend (%s); trying again", error)
                away = True

    def _poll(self, task_id: str, before: Any) -> None:
        meta = self._backend.get_task_meta(task_id, cache=False)
        state = meta["status"], meta.get("result")
        if state != before:
            with self._lock:
                if task_id in self._open:
                    self._open[task_id] = state
            self._on_state(task_id, meta)


def _read(stored: bytes) -> Meta:
    try:
        meta = from_json(stored)
        if isinstance(meta, dict) and "status" in meta:
            return meta
    except (orjson.JSONDecodeError, NotJson):
        pass
    error = {"exc_type": "EncodeError", "exc_module": "kombu", "exc_message": "the result is not JSON"}
    return {"status": "FAILURE", "result": error}
