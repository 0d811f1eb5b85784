"""Resolves commits whose reply was lost, so that it is unknown whether they took effect.

The transaction id is known before COMMIT is sent, and the server can report the status of the transaction later. The
outcomes of such a commit are kept. When its transitions are retried and the server confirms that the first attempt was
committed, the kept outcomes are returned. Otherwise the retry of a worker would be refused, because its own first
attempt has already moved the job.

A batch committed by a single statement has no known transaction id. Once its session has ended, its rows show what was
applied (`single_statement.recall`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import asyncpg

from fairlead.domain.transitions import Delete, Move, Start, Submit
from fairlead.store.port import (
    Accepted,
    Busy,
    Committed,
    CreateBatch,
    CreateKey,
    Done,
    FireTimers,
    OutboxEntry,
    Outcome,
    PromoteWaiting,
    RevokeKey,
    Started,
    SweepResult,
    Transition,
    TurnedBack,
    UseTicket,
)
from fairlead.store.postgres.connect import Backend
from fairlead.store.postgres.queries import WRITES
from fairlead.store.postgres.single_statement import recall

KEPT = 150_000  # transitions; more than the queue of a group commit or the largest batch holds

_Key = tuple[type, str]


class InDoubtCommits:
    def __init__(self) -> None:
        self._open: list[tuple[str, Sequence[Transition], Committed]] = []
        self._unnumbered: list[tuple[Backend, Sequence[Transition]]] = []
        self._settled: OrderedDict[_Key, tuple[Transition, Outcome | Exception]] = OrderedDict()
        self._changes: list[OutboxEntry] = []
        self._asking = asyncio.Lock()

    def remember(self, transaction: str, batch: Sequence[Transition], committed: Committed) -> None:
        self._open.append((transaction, batch, committed))

    def remember_statement(self, backend: Backend, batch: Sequence[Transition]) -> None:
        self._unnumbered.append((backend, batch))

    async def settle(self, connection: asyncpg.Connection) -> None:
        """Ask the server whether each commit in doubt took effect. Raises `Busy` if one of them is still running.
        Concurrent callers wait, because they may be retrying one of these commits."""
        if not self._open and not self._unnumbered:
            return
        async with self._asking:
            while self._unnumbered:
                await self._recall(connection, *self._unnumbered[0])
                self._unnumbered.pop(0)
            while self._open:
                await self._ask(connection, *self._open[0])
                self._open.pop(0)

    async def _ask(
        self, connection: asyncpg.Connection, transaction: str, batch: Sequence[Transition], committed: Committed
    ) -> None:
        try:
            status = await connection.fetchval(WRITES["status_of_commit"], transaction)
        except asyncpg.InvalidParameterValueError:
            return  # the id is "in the future": the server crashed before the transaction reached the disk
        if status == "in progress":
            raise Busy("the server has not yet noticed that a connection was lost")
        if status != "committed" or not await _is_there(connection, batch, committed):
            return
        self._keep(zip(batch, committed.outcomes, strict=True), committed.changes)

    async def _recall(self, connection: asyncpg.Connection, backend: Backend, batch: Sequence[Transition]) -> None:
        if await connection.fetchval(WRITES["is_backend_there"], *backend):
            raise Busy("the server has not yet noticed that a connection was lost")
        self._keep(*await recall(connection, batch))

    def _keep(self, applied: Iterable[tuple[Transition, Outcome | Exception]], changes: Iterable[OutboxEntry]) -> None:
        for transition, outcome in applied:
            if (key := _key(transition)) is not None:
                self._settled[key] = transition, outcome
        self._changes += changes
        while len(self._settled) > KEPT:
            self._settled.popitem(last=False)

    def answers(self, batch: Sequence[Transition]) -> dict[int, Outcome | Exception]:
        """The outcomes of transitions in this batch that an earlier attempt committed, by index in the batch."""
        if not self._settled:
            return {}
        outcomes = {}
        for index, transition in enumerate(batch):
            key = _key(transition)
            if key is not None and key in self._settled and self._settled[key][0] == transition:
                outcomes[index] = self._settled[key][1]
        return outcomes

    def answered(self, transitions: Iterable[Transition]) -> None:
        """Forget the kept outcomes of these transitions, because their callers have them now. Transitions that are sent
        once more are refused as late."""
        for transition in transitions:
            if (key := _key(transition)) is not None:
                self._settled.pop(key, None)

    def changes(self) -> list[OutboxEntry]:
        """Take the outbox rows of confirmed commits that were not relayed yet. Each row is returned only once."""
        changes, self._changes = self._changes, []
        return changes


def _key(transition: Transition) -> _Key | None:
    """The key under which the outcome of a transition is kept, or None if applying the transition twice is harmless.

    A sweep has a key, made from its time: if it were repeated, it would find other jobs, and the jobs that the first
    attempt moved would never be reported. Writes of keys and tickets have a key because the second attempt would be
    refused.
    """
    if isinstance(transition, Submit):
        return Submit, transition.job.id
    if isinstance(transition, CreateBatch):
        return CreateBatch, transition.batch.id
    if isinstance(transition, UseTicket):
        return UseTicket, transition.hash
    if isinstance(transition, CreateKey):
        return CreateKey, transition.key.id
    if isinstance(transition, RevokeKey):
        return RevokeKey, transition.key_id
    if isinstance(transition, FireTimers | PromoteWaiting):
        return type(transition), repr(transition.now)
    return (type(transition), transition.job_id) if isinstance(transition, Start | Move | Delete) else None


async def _is_there(connection: asyncpg.Connection, batch: Sequence[Transition], committed: Committed) -> bool:
    """Whether the jobs show the effects of this commit. The transaction id alone is no proof: a standby that was
    promoted before it received the commit may have used the same id for another transaction."""
    least: dict[str, int] = {}
    for transition, outcome in zip(batch, committed.outcomes, strict=True):
        if isinstance(transition, Start | Move) and isinstance(outcome, Started | Done | TurnedBack):
            least[transition.job_id] = transition.run + 1
        elif isinstance(transition, Submit) and isinstance(outcome, Accepted) and not outcome.replayed:
            least[transition.job.id] = 0
        elif isinstance(outcome, Done) and isinstance(outcome.value, SweepResult):
            least.update((job.id, move.run + 1) for job, move in outcome.value.moves)
    runs = dict(map(tuple, await connection.fetch(WRITES["runs"], sorted(least))))
    return all(runs.get(job_id, run) >= run for job_id, run in least.items()) and (not least or bool(runs))
