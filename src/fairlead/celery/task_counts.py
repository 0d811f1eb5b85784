"""The pending and running tasks of every queue, stored in Redis and changed by Lua scripts only.

A task is counted under a ticket: its id, made unique per message (`ticket_of`). The task id alone is not unique,
because a retry or a replacement of a task is published with the same id while the first message is still being
processed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fairlead.celery.redis_link import PendingReply, RedisLink
from fairlead.errors import Unavailable

State = Literal["pending", "running"]
STATES: tuple[State, ...] = ("pending", "running")
MOST_QUEUES = 1000
TTL_S = 7 * 24 * 3600
"""Keys in Redis expire this many seconds after their last change. Reconcile passes renew the keys of existing tasks."""
BALANCERS = "fairlead:celery:balancers"
"""A Redis hash with one field per balancer, named by the prefix of its queues. The value is JSON with the number of
queues and the `worker_ttl`."""
CREDIT_S = 3600
"""Counts by hand (`increment_pending`) expire this many seconds after the last such count."""


class Load(NamedTuple):
    """The numbers of pending and running tasks of a queue. It is a tuple because `get_all_queue_loads` returned tuples
    in earlier versions."""

    pending: int
    running: int

    @property
    def total(self) -> int:
        return self.pending + self.running


class Entry(NamedTuple):
    """The state of a ticket (pending or running), and when it last changed, in microseconds of Redis' clock."""

    state: State
    moved: int


class Repair(NamedTuple):
    """A ticket that is counted in the wrong state: `was` is the counted state, `now` the right one. '' means not
    counted."""

    queue: str
    ticket: str
    was: State | Literal[""]
    moved: int
    now: State | Literal[""]


class CeleryWorker(NamedTuple):
    """A worker as its last heartbeat reports it. `heard` is the time of this heartbeat. `running` has the (queue,
    ticket) pairs of the tasks that it was running. `queues` are the balanced queues that it consumes, or None if it
    runs a release that does not report them."""

    name: str
    heard: int
    running: frozenset[tuple[str, str]]
    queues: frozenset[str] | None = None

    def consumes(self, queue: str) -> bool:
        """Return whether the worker consumes this queue. A worker that does not report its queues is assumed to consume
        all."""
        return self.queues is None or queue in self.queues


@dataclass(frozen=True, slots=True)
class Miscount:
    queue: str
    state: str
    was: int
    now: int


class TaskCounts:
    def __init__(self, link: RedisLink, prefix: str, count: int) -> None:
        self._link = link
        self.prefix = prefix
        self.names = tuple(f"{prefix}{index}" for index in range(count))
        self._counters = tuple(f"queue:{name}:{state}" for name in self.names for state in STATES)
        self._key = f"fairlead:celery:{prefix}"

    # -- moves -----------------------------------------------------------------------------------------------------

    def reserve(self, calls: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
        """Choose the queue with the least load for each ticket, among the ticket's candidates, and count the ticket as
        pending there. No candidates means all queues. One call of Redis handles all tickets."""
        args = [word for ticket, indices in calls for word in (ticket, ",".join(map(str, indices)))]
        return [self.names[index] for index in self._run("reserve", len(self.names), *args)]

    def start_reserve(self, ticket: str, indices: Sequence[int]) -> PendingReply:
        """Like `reserve` for one ticket, but without waiting for the reply. Pass the returned object to
        `reserved_queue` to read the reply."""
        return self._link.start("reserve", *self._arguments(ticket, indices))

    def _arguments(self, ticket: str, indices: Sequence[int]) -> tuple[str | int, ...]:
        return self.prefix, TTL_S, len(self.names), ticket, ",".join(map(str, indices))

    def reserved_queue(self, reply: PendingReply) -> str:
        name: str = self.names[reply.answer()[0]]
        return name

    def push(self, ticket: str, indices: Sequence[int], key: tuple[str, str], message: tuple[str, str]) -> str:
        """Like `reserve` for one ticket, and also send its message to the chosen queue. `key` and `message` are each
        given as the parts before and after the queue's name, which the script inserts."""
        args = (*self._arguments(ticket, indices), *key, *message)
        # If the reply is lost, the script may have run, so the repeated script checks whether the message was sent.
        reply = self._link.start("push", *args, "", again=lambda: self._link.run("push", *args, "again"))
        return self.names[int(reply.answer())]

    def deliver(self, key: str, message: str) -> None:
        """Put a message that is already counted into its queue. Raises `Unavailable` if it is unknown whether Redis
        stored the message."""

        def unknown() -> None:
            raise Unavailable("Redis did not confirm that it stored the message")

        self._link.send("LPUSH", key, message, again=unknown).answer()

    def expect(self, queue: str, ticket: str) -> None:
        """Count a ticket as pending in a queue that the caller chose by name."""
        self._run("expect", queue, ticket)

    def place(self, state: State | Literal[""], tasks: Iterable[tuple[str, str]]) -> None:
        """Set the state of tasks, given as (queue, ticket) pairs. The state '' means that the tasks have ended."""
        self._run("place", state, *(word for task in tasks for word in task))

    def adjust(self, queue: str, state: State, by: int) -> int:
        return int(self._run("adjust", queue, state, by, CREDIT_S))

    def reset(self, queues: Iterable[str]) -> None:
        self._run("reset", *queues)

    def repair(self, repairs: Sequence[Repair]) -> list[Repair]:
        """Apply repairs to the tickets that have not changed since the repairs were computed. Returns the repairs that
        were applied."""
        if not repairs:
            return []
        done = self._run("repair", *(word for repair in repairs for word in repair))
        return [repair for repair, was_done in zip(repairs, done, strict=True) if was_done]

    def recount(self) -> list[Miscount]:
        words = self._run("recount", len(self.names))
        rows = zip(*[iter(words)] * 4, strict=True)
        return [Miscount(queue.decode(), state.decode(), int(was), int(now)) for queue, state, was, now in rows]

    # -- reads -----------------------------------------------------------------------------------------------------

    def loads(self) -> dict[str, Load]:
        """Return the loads of all queues as one consistent snapshot, in the order of the queues."""
        values = [_count_in(value) for value in self._link.execute("MGET", *self._counters)]
        return {name: Load(*values[2 * i : 2 * i + 2]) for i, name in enumerate(self.names)}

    def former_names(self) -> list[str]:
        """Return the queues that still hold tasks and that the balancer no longer has, because it was configured with
        more queues before."""
        names = [f"{self.prefix}{index}" for index in range(len(self.names), MOST_QUEUES)]
        counts = self._link.execute("MGET", *(f"queue:{name}:pending" for name in names)) if names else []
        return [name for name, count in zip(names, counts, strict=True) if count not in (None, b"0")]

    def entries(self, queue: str) -> dict[str, Entry]:
        rows: dict[str, Entry] = {}
        for state in STATES:
            words = self._link.execute("ZRANGE", f"queue:{queue}:{state}:tasks", 0, -1, "WITHSCORES")
            pairs = zip(words[::2], words[1::2], strict=True)
            rows |= {ticket.decode(): Entry(state, int(moved)) for ticket, moved in pairs}
        return rows

    def count(self, queue: str, state: State) -> int:
        """Return the number of tickets of a queue in this state. Tasks that were counted by hand have no ticket and are
        not included."""
        return int(self._link.execute("ZCARD", f"queue:{queue}:{state}:tasks"))

    def now(self) -> int:
        seconds, micros = self._link.execute("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    # -- workers ---------------------------------------------------------------------------------------------------

    def beat(
        self, worker: str, running: Iterable[tuple[str, str]], queues: Iterable[str] | None = None, ttl_s: float = 15.0
    ) -> None:
        """Record a heartbeat of a worker: the (queue, ticket) pairs of the tasks that it runs, the balanced queues that
        it consumes (None: all), and for how long it counts as alive without another heartbeat."""
        consumed = self.names if queues is None else list(queues)
        balancer = {"queues": len(self.names), "worker_ttl": ttl_s}
        self._run("beat", worker, *map(json.dumps, (sorted(running), consumed, balancer)))

    def leave(self, worker: str) -> None:
        self._run("beat", worker, "")

    def workers(self) -> list[CeleryWorker]:
        rows = self._link.execute("HGETALL", f"{self._key}:workers")
        consumed = self._link.execute("HGETALL", f"{self._key}:consumed") if rows else {}
        workers = []
        for name, value in rows.items():
            moment, _, running = value.decode().partition(" ")
            queues = frozenset(json.loads(consumed[name])) if name in consumed else None
            tasks = frozenset(map(tuple, json.loads(running)))
            workers.append(CeleryWorker(name.decode(), int(moment), tasks, queues))
        return workers

    def live_workers(self, ttl_s: float) -> list[CeleryWorker]:
        """Return the workers that sent a heartbeat within the last `ttl_s` seconds."""
        oldest = self.now() - int(ttl_s * 1_000_000)
        return [worker for worker in self.workers() if worker.heard > oldest]

    def take_turn(self, worker: str, every_s: float) -> bool:
        """Return whether this worker reconciles in this period. Only the first worker that asks in a period gets
        True."""
        answer = self._link.execute("SET", f"{self._key}:reconciling", worker, "NX", "PX", max(1, int(every_s * 1000)))
        return answer is not None

    def count_repairs(self, kinds: Mapping[str, int]) -> None:
        for kind, count in kinds.items():
            self._link.execute("HINCRBY", f"{self._key}:repairs", kind, count)

    def repairs(self) -> dict[str, int]:
        rows = self._link.execute("HGETALL", f"{self._key}:repairs")
        return {kind.decode(): int(count) for kind, count in rows.items()}

    def _run(self, name: str, *args: Any) -> Any:
        return self._link.run(name, self.prefix, TTL_S, *args)


def _count_in(value: bytes | None) -> int:
    """Parse the value of a counter. A value that is not a number was written by other code and counts as 0; the next
    change of the queue corrects it."""
    try:
        return max(0, int(value or 0))
    except ValueError:
        return 0


# -- tickets ---------------------------------------------------------------------------------------------------------


def ticket_of(task_id: str, retries: int | None = 0, nesting: int | None = 0) -> str:
    """Return the ticket of a task: its id, followed by `#2` for its second retry and by `/1` for its first
    replacement."""
    text = task_id
    if retries:
        text += f"#{retries}"
    if nesting:
        text += f"/{nesting}"
    return text


def ticket_of_headers(headers: Mapping[str, Any]) -> str | None:
    """Return the ticket of a message from its headers, or None if the message is not a task."""
    task_id = headers.get("id")
    if not task_id:
        return None
    return ticket_of(task_id, headers.get("retries"), headers.get("replaced_task_nesting"))


def ticket_of_request(request: Any) -> str:
    """Return the ticket of a running task from its `task.request`."""
    return ticket_of(request.id, request.retries, getattr(request, "replaced_task_nesting", 0))
