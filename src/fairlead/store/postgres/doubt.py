"""A COMMIT whose reply was lost: did it happen?

The transaction's number is known before its COMMIT is sent, and the server can tell afterwards what became of it. So
the outcomes of such a commit are kept; when its transitions come again, and the server says that the first time
counted, the kept outcomes are the answer. Without this a worker would be told that its result is late, when it was its
own first try that moved the job. A batch that was one statement has no number yet: the rows say what became of it
(`express.recall`), once the session that ran it is gone.
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
    LineChange,
    Outcome,
    PromoteWaiting,
    RevokeKey,
    RingTimers,
    Rung,
    Started,
    Transition,
    UseTicket,
)
from fairlead.store.postgres.connect import Backend
from fairlead.store.postgres.express import recall
from fairlead.store.postgres.queries import WRITES

KEPT = 150_000  # transitions; as many as a journal has waiting, and more than the largest bulk or batch has

_Key = tuple[type, str]


class Doubts:
    def __init__(self) -> None:
        self._open: list[tuple[str, Sequence[Transition], Committed]] = []
        self._unnumbered: list[tuple[Backend, Sequence[Transition]]] = []
        self._settled: OrderedDict[_Key, tuple[Transition, Outcome | Exception]] = OrderedDict()
        self._changes: list[LineChange] = []
        self._asking = asyncio.Lock()

    def remember(self, transaction: str, batch: Sequence[Transition], committed: Committed) -> None:
        self._open.append((transaction, batch, committed))

    def remember_statement(self, backend: Backend, batch: Sequence[Transition]) -> None:
        self._unnumbered.append((backend, batch))

    async def settle(self, connection: asyncpg.Connection) -> None:
        """Ask the server about each commit in doubt. One that is under way still must end first. Who comes meanwhile
        waits: it may be the very one, tried again."""
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
            return  # "in the future": the server crashed before anything of it was on disk
        if status == "in progress":
            raise Busy("the server has not noticed yet that a connection to it was lost")
        if status != "committed" or not await _is_there(connection, batch, committed):
            return
        self._keep(zip(batch, committed.outcomes, strict=True), committed.changes)

    async def _recall(self, connection: asyncpg.Connection, backend: Backend, batch: Sequence[Transition]) -> None:
        if await connection.fetchval(WRITES["is_backend_there"], *backend):
            raise Busy("the server has not noticed yet that a connection to it was lost")
        self._keep(*await recall(connection, batch))

    def _keep(self, applied: Iterable[tuple[Transition, Outcome | Exception]], changes: Iterable[LineChange]) -> None:
        for transition, outcome in applied:
            if (key := _key(transition)) is not None:
                self._settled[key] = transition, outcome
        self._changes += changes
        while len(self._settled) > KEPT:
            self._settled.popitem(last=False)

    def answers(self, batch: Sequence[Transition]) -> dict[int, Outcome | Exception]:
        """By place in the batch, the outcomes that are known from the first time."""
        if not self._settled:
            return {}
        found = {}
        for place, transition in enumerate(batch):
            key = _key(transition)
            if key is not None and key in self._settled and self._settled[key][0] == transition:
                found[place] = self._settled[key][1]
        return found

    def answered(self, transitions: Iterable[Transition]) -> None:
        """They have been told; should they come once more, they are late."""
        for transition in transitions:
            if (key := _key(transition)) is not None:
                self._settled.pop(key, None)

    def changes(self) -> list[LineChange]:
        """Outbox rows of which nobody was told yet."""
        changes, self._changes = self._changes, []
        return changes


def _key(transition: Transition) -> _Key | None:
    """Most of what has no job may be applied twice without harm. A sweep finds other jobs the second time, and nobody
    would be told of those that it moved at first; its moment is its name. And whoever uses a ticket, or makes or
    revokes a key, would be told that somebody had done so before."""
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
    if isinstance(transition, RingTimers | PromoteWaiting):
        return type(transition), repr(transition.now)
    return (type(transition), transition.job_id) if isinstance(transition, Start | Move | Delete) else None


async def _is_there(connection: asyncpg.Connection, batch: Sequence[Transition], committed: Committed) -> bool:
    """A standby that was promoted without this commit may have given its number to another one: look at the jobs."""
    least: dict[str, int] = {}
    for transition, outcome in zip(batch, committed.outcomes, strict=True):
        if isinstance(transition, Start | Move) and isinstance(outcome, Started | Done):
            least[transition.job_id] = transition.run + 1
        elif isinstance(transition, Submit) and isinstance(outcome, Accepted) and not outcome.replayed:
            least[transition.job.id] = 0
        elif isinstance(outcome, Done) and isinstance(outcome.value, Rung):
            least.update((job.id, move.run + 1) for job, move in outcome.value.moves)
    runs = dict(map(tuple, await connection.fetch(WRITES["runs"], sorted(least))))
    return all(runs.get(job_id, run) >= run for job_id, run in least.items()) and (not least or bool(runs))
