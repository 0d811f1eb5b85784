"""What is where: for every queue the tasks that wait and those that run, in Redis, moved by scripts only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fairlead.celery.link import Link, Question
from fairlead.errors import Unavailable

State = Literal["pending", "running"]
STATES: tuple[State, ...] = ("pending", "running")
MOST_QUEUES = 1000
TTL_S = 7 * 24 * 3600
"""How long anything outlives its last move. What workers still know of is refreshed by their reconcile passes."""
CREDIT_S = 3600
"""How long a count by hand outlives the last one."""


class Load(NamedTuple):
    """A tuple, as `get_all_queue_loads` always gave."""

    pending: int
    running: int

    @property
    def total(self) -> int:
        return self.pending + self.running


class Entry(NamedTuple):
    """Where a ticket is, and since when (microseconds of Redis' clock)."""

    state: State
    moved: int


class Repair(NamedTuple):
    """A ticket that is not where it should be. '' stands for nowhere."""

    queue: str
    ticket: str
    was: State | Literal[""]
    moved: int
    now: State | Literal[""]


class Worker(NamedTuple):
    """When it was heard last, and the (queue, ticket) of what it ran then."""

    name: str
    heard: int
    running: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Miscount:
    queue: str
    state: str
    was: int
    now: int


class Ledger:
    def __init__(self, link: Link, prefix: str, count: int) -> None:
        self._link = link
        self._prefix = prefix
        self.names = tuple(f"{prefix}{index}" for index in range(count))
        self._counters = tuple(f"queue:{name}:{state}" for name in self.names for state in STATES)
        self._key = f"fairlead:celery:{prefix}"

    # -- moves -----------------------------------------------------------------------------------------------------

    def reserve(self, calls: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
        """Tickets with the indices of the queues they may go to (none: all). The queue of each, in one call."""
        args = [word for ticket, indices in calls for word in (ticket, ",".join(map(str, indices)))]
        return [self.names[index] for index in self._run("reserve", len(self.names), *args)]

    def ask_for(self, ticket: str, indices: Sequence[int]) -> Question:
        """As `reserve` for one ticket; `told` makes a queue of the answer."""
        return self._link.ask("reserve", *self._about(ticket, indices))

    def _about(self, ticket: str, indices: Sequence[int]) -> tuple[str | int, ...]:
        return self._prefix, TTL_S, len(self.names), ticket, ",".join(map(str, indices))

    def told(self, question: Question) -> str:
        name: str = self.names[question.answer()[0]]
        return name

    def push(self, ticket: str, indices: Sequence[int], key: tuple[str, str], message: tuple[str, str]) -> str:
        """As `reserve` for one ticket, and sends its message: the parts before and after the queue's name of both the
        broker's key and the message."""
        args = (*self._about(ticket, indices), *key, *message)
        # A reply that was lost says nothing of the script: the second one looks whether the first has sent it.
        question = self._link.ask("push", *args, "", again=lambda: self._link.run("push", *args, "again"))
        return self.names[int(question.answer())]

    def deliver(self, key: str, message: str) -> None:
        """Puts a message that is counted into its queue. Raises `Unavailable` where it is not known whether it is."""

        def unknown() -> None:
            raise Unavailable("Redis did not say whether it has the message")

        self._link.send("LPUSH", key, message, again=unknown).answer()

    def expect(self, queue: str, ticket: str) -> None:
        """A task that its caller sends to a queue of its own choice."""
        self._run("expect", queue, ticket)

    def place(self, state: State | Literal[""], tasks: Iterable[tuple[str, str]]) -> None:
        """Tasks as (queue, ticket) that wait, run, or (with '') have ended."""
        self._run("place", state, *(word for task in tasks for word in task))

    def adjust(self, queue: str, state: State, by: int) -> int:
        return int(self._run("adjust", queue, state, by, CREDIT_S))

    def reset(self, queues: Iterable[str]) -> None:
        self._run("reset", *queues)

    def repair(self, repairs: Sequence[Repair]) -> list[Repair]:
        """Those that had not moved meanwhile, and were put right."""
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
        """Of all queues, at one moment, in the order of their index."""
        values = [_count_in(value) for value in self._link.execute("MGET", *self._counters)]
        return {name: Load(*values[2 * i : 2 * i + 2]) for i, name in enumerate(self.names)}

    def former_names(self) -> list[str]:
        """Queues of higher numbers, where a balancer that had more of them has counted what waits."""
        names = [f"{self._prefix}{index}" for index in range(len(self.names), MOST_QUEUES)]
        counts = self._link.execute("MGET", *(f"queue:{name}:pending" for name in names)) if names else []
        return [name for name, count in zip(names, counts, strict=True) if count not in (None, b"0")]

    def entries(self, queue: str) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for state in STATES:
            words = self._link.execute("ZRANGE", f"queue:{queue}:{state}:tasks", 0, -1, "WITHSCORES")
            pairs = zip(words[::2], words[1::2], strict=True)
            found |= {ticket.decode(): Entry(state, int(moved)) for ticket, moved in pairs}
        return found

    def count(self, queue: str, state: State) -> int:
        """How many tasks are known to be there, without what was counted by hand."""
        return int(self._link.execute("ZCARD", f"queue:{queue}:{state}:tasks"))

    def now(self) -> int:
        seconds, micros = self._link.execute("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    # -- workers ---------------------------------------------------------------------------------------------------

    def beat(self, worker: str, running: Iterable[tuple[str, str]]) -> None:
        """It lives, and runs these (queue, ticket)."""
        self._run("beat", worker, json.dumps(sorted(running)))

    def leave(self, worker: str) -> None:
        self._run("beat", worker, "")

    def workers(self) -> list[Worker]:
        found = self._link.execute("HGETALL", f"{self._key}:workers")
        heard = []
        for name, said in found.items():
            moment, _, running = said.decode().partition(" ")
            heard.append(Worker(name.decode(), int(moment), frozenset(map(tuple, json.loads(running)))))
        return heard

    def take_turn(self, worker: str, every_s: float) -> bool:
        """Whether this worker is the one to reconcile for as long."""
        answer = self._link.execute("SET", f"{self._key}:reconciling", worker, "NX", "PX", max(1, int(every_s * 1000)))
        return answer is not None

    def count_repairs(self, kinds: Mapping[str, int]) -> None:
        for kind, count in kinds.items():
            self._link.execute("HINCRBY", f"{self._key}:repairs", kind, count)

    def repairs(self) -> dict[str, int]:
        found = self._link.execute("HGETALL", f"{self._key}:repairs")
        return {kind.decode(): int(count) for kind, count in found.items()}

    def _run(self, name: str, *args: Any) -> Any:
        return self._link.run(name, self._prefix, TTL_S, *args)


def _count_in(value: bytes | None) -> int:
    """What is no count was written by somebody else; the queue's next move puts it right."""
    try:
        return max(0, int(value or 0))
    except ValueError:
        return 0
