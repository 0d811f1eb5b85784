"""A batch of transitions as one transaction: one statement per kind, each for all transitions of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import asyncpg
import orjson

from fairlead.domain.job import Job
from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.store import batches as batch_kinds
from fairlead.store import board as board_kinds
from fairlead.store.operators import KINDS
from fairlead.store.port import (
    Adapt,
    Committed,
    DeclareServices,
    Done,
    EndHolds,
    LineChange,
    Outcome,
    Override,
    PromoteWaiting,
    Prune,
    RaiseEpoch,
    Refused,
    Relayed,
    RingTimers,
    Rung,
    Started,
    Transition,
)
from fairlead.store.postgres import batches, board, encode, operators
from fairlead.store.postgres.moves import Moves
from fairlead.store.postgres.queries import READS, WRITES
from fairlead.store.postgres.submit import UNDONE, submitting
from fairlead.store.rows import job_of, micros, micros_by
from fairlead.store.settings import adapted_row, declaration_of, rules_of
from fairlead.store.sweeps import Sweep, moves_of, promoted_bands, taken_in

MOVED_ON = Refused("the job moved on or is not there")
NOT_STARTED = Refused("the job moved on, is not there, or the epoch changed")
NOT_FINISHED = Refused("the job is not finished or is not there")
UNDECLARED = Refused("no such service is declared")
MOVED_ELSEWHERE = Refused("no such service is declared, or its limit was moved meanwhile")
DONE = Done()


class Undone(Exception):
    """One of an all-or-nothing batch was turned away: roll back, these are the outcomes."""

    def __init__(self, committed: Committed) -> None:
        super().__init__()
        self.committed = committed


class Commit:
    """Within a transaction of `connection` that is open already. A *place* is an index into the batch."""

    def __init__(
        self,
        connection: asyncpg.Connection,
        batch: Sequence[Transition],
        *,
        origin: str,
        now: int,
        scopes: set[str],
        all_or_nothing: bool,
    ) -> None:
        self._connection = connection
        self._batch = batch
        self._origin = origin
        self._now = now
        self._scopes = scopes  # whose rows are there, to this process's knowledge
        self._all_or_nothing = all_or_nothing
        self._outcomes: list[Outcome | Exception] = [DONE] * len(batch)
        self._changes: list[LineChange] = []
        self._moves = Moves(self._ask, origin=origin, now=now)
        self._swept: set[str] = set()

    async def apply(self, skip: Iterable[int] = ()) -> Committed:
        """`skip`: places that have their outcome already."""
        kinds: dict[type, list[int]] = {}
        for place, transition in enumerate(self._batch):
            kinds.setdefault(type(transition), []).append(place)
        for place in skip:
            kinds[type(self._batch[place])].remove(place)
        # The rules first, and jobs enter before they move and go.
        steps: tuple[tuple[type, Callable[[list[int]], Any]], ...] = (
            (RaiseEpoch, self._raise_epochs),
            (DeclareServices, self._declare),
            (Override, self._override),
            (Adapt, self._adapt),
            (Submit, self._submit),
            (Start, self._start),
            (Move, self._move),
            (Progress, self._progress),
            (Prioritise, self._prioritise),
            (Adopt, self._adopt),
            (Delete, self._delete),
            # A sweep never waits for a job's row. So it comes when nothing else that follows waits for one: whoever
            # waits for what a sweep has locked waits for the rest of this commit only, and there is no deadlock in it.
            (RingTimers, self._sweep),
            (PromoteWaiting, self._sweep),
            (Relayed, self._relayed),
            (EndHolds, self._end_holds),
            (Prune, self._prune),
            *((kind, self._batch_up) for kind in batch_kinds.KINDS),
            *((kind, self._operate) for kind in KINDS),
            *((kind, self._keep_board) for kind in board_kinds.KINDS),
        )
        for kind, step in steps:
            if places := kinds.get(kind):
                await step(places)
        return Committed(self._outcomes, [*self._changes, *self._moves.changes])

    def _by_job(self, places: Iterable[int]) -> list[int]:
        """Rows are locked in the order of the arrays: by job id, in every process."""
        return sorted(places, key=lambda place: self._batch[place].job_id)  # type: ignore[union-attr]

    def _of(self, places: Sequence[int]) -> list[Any]:
        return [self._batch[place] for place in places]

    async def _ask(self, name: str, *parameters: Any) -> list[Any]:
        return list(await self._connection.fetch(WRITES[name], *parameters))

    # ------------------------------------------------------------ the rules and the epochs

    async def _raise_epochs(self, places: list[int]) -> None:
        # In the order of their names, for they stay locked; of one scope, one after the other.
        for place in sorted(places, key=lambda place: self._batch[place].scope):  # type: ignore[union-attr]
            raising: Any = self._batch[place]
            ((number,),) = await self._ask("raise_epoch", raising.scope, raising.server)
            self._outcomes[place] = Done(number)

    async def _declare(self, places: list[int]) -> None:
        await self._ask("lock_rules")
        for place in places:
            await self._ask("declare", declaration_of(self._batch[place]))  # type: ignore[arg-type]
            self._outcomes[place] = Done(await self._rules())

    async def _override(self, places: list[int]) -> None:
        for place in places:
            override: Any = self._batch[place]
            if not await self._lock_rules_of(override.service):
                self._outcomes[place] = UNDECLARED
                continue
            found = await self._ask("override_of", override.service)
            before = tuple(found[0]) if found else (None, None)
            limit = None if override.lift_limit else before[0] if override.limit is None else override.limit
            after = (limit, before[1] if override.paused is None else override.paused)
            if before != after:
                await self._ask("override", override.service, *after)
                await self._ask("raise_version")
            self._outcomes[place] = Done(await self._rules())

    async def _adapt(self, places: list[int]) -> None:
        for place in places:
            service, was, *now = adapted_row(self._batch[place])  # type: ignore[arg-type]
            declared = await self._lock_rules_of(service)
            found = await self._ask("adapted_of", service)
            if not declared or (found[0][0] if found else None) != was:
                self._outcomes[place] = MOVED_ELSEWHERE
                continue
            await self._ask("adapt", service, *now)
            ((version,),) = await self._ask("raise_version")
            self._outcomes[place] = Done(version)

    async def _lock_rules_of(self, service: str) -> bool:
        """False: it is not declared."""
        ((declared,),) = await self._ask("lock_rules")
        return any(each["service"] == service for each in orjson.loads(declared)["services"])

    async def _rules(self) -> Any:
        version, *found = (await self._connection.fetch(READS["rules"]))[0]
        return rules_of([version, *map(orjson.loads, found)])

    # ------------------------------------------------------------ submit and start

    async def _submit(self, places: list[int]) -> None:
        talk = submitting(self._of(places), origin=self._origin, now=self._now, all_or_nothing=self._all_or_nothing)
        try:
            sql, parameters = next(talk)
            while True:
                sql, parameters = talk.send(await self._connection.fetch(sql, *parameters))
        except StopIteration as end:
            submitted = end.value
        for place, outcome in zip(places, submitted.outcomes, strict=True):
            self._outcomes[place] = outcome
        self._changes += submitted.changes
        if submitted.undone:
            others = set(range(len(self._batch))).difference(places)
            for place in others:
                self._outcomes[place] = UNDONE
            raise Undone(Committed(self._outcomes, []))

    async def _start(self, places: list[int]) -> None:
        """Those of another epoch are left out; the others' epochs stay as they are until this commit is done."""
        starts: list[Any] = self._of(places)
        scopes = sorted({start.scope for start in starts})
        if unknown := [scope for scope in scopes if scope not in self._scopes]:
            await self._ask("know_scopes", unknown)
        epochs = dict(map(tuple, await self._ask("share_epochs", scopes)))
        current = []
        for place, start in zip(places, starts, strict=True):
            self._outcomes[place] = NOT_STARTED
            if encode.epoch_of(start.lease) == epochs.get(start.scope, 0):
                current.append(place)
        if not current:
            return
        current = self._by_job(current)
        rows = await self._ask("start", *encode.start_columns(self._of(current)), self._now)
        for n, input_json, context_json, *job in rows:
            self._outcomes[current[n - 1]] = Started(job_of(job), input_json, context_json)

    # ------------------------------------------------------------ move and sweep

    async def _move(self, places: list[int]) -> None:
        applied = await self._moves.apply(self._of(places))
        for n, place in enumerate(places):
            self._outcomes[place] = DONE if n in applied else MOVED_ON

    async def _sweep(self, places: list[int]) -> None:
        taken = taken_in(self._batch) | self._swept
        for place in places:
            sweep: Any = self._batch[place]
            jobs = await self._due(sweep, sorted(taken))
            wanted = moves_of(sweep, jobs)
            applied = await self._moves.apply([move for _, move in wanted])
            self._outcomes[place] = Done(Rung(len(jobs), [wanted[n] for n in sorted(applied)]))
            self._swept.update(job.id for job in jobs)
            taken |= self._swept

    async def _due(self, sweep: Sweep, taken: list[str]) -> list[Job]:
        if isinstance(sweep, RingTimers):
            rows = await self._ask("due", micros_by(sweep.now), sweep.limit, taken)
        else:
            rows = []
            for band, before in promoted_bands(sweep):
                if room := sweep.limit - len(rows):
                    rows += await self._ask("promotable", micros(before), room, taken, band)
        return [job_of(row) for row in rows]

    # ------------------------------------------------------------ progress, delete, and the manager's housekeeping

    async def _progress(self, places: list[int]) -> None:
        await self._match("progress", places, encode.progress_columns, self._now)

    async def _prioritise(self, places: list[int]) -> None:
        await self._match("prioritise", places, encode.prioritise_columns)

    async def _adopt(self, places: list[int]) -> None:
        await self._match("adopt", places, encode.adopt_columns)

    async def _match(
        self, name: str, places: list[int], columns: Callable[[Iterable[Any]], encode.Columns], *more: Any
    ) -> None:
        """What is guarded by `run`, and does not raise it: the statement returns the numbers of those it changed."""
        places = self._by_job(places)
        for place in places:
            self._outcomes[place] = MOVED_ON
        for (n,) in await self._ask(name, *columns(self._of(places)), *more):
            self._outcomes[places[n - 1]] = DONE

    async def _delete(self, places: list[int]) -> None:
        ids = [self._batch[place].job_id for place in self._by_job(places)]  # type: ignore[union-attr]
        gone = set(await self._gone(ids))
        for place in places:
            self._outcomes[place] = DONE if self._batch[place].job_id in gone else NOT_FINISHED  # type: ignore[union-attr]

    async def _gone(self, ids: list[str]) -> list[str]:
        """Those of the jobs that had ended, and are there no more."""
        gone = [row[0] for row in await self._ask("delete", ids)] if ids else []
        if gone:
            await self._ask("strike_counts", gone)
        return gone

    async def _relayed(self, places: list[int]) -> None:
        ids = sorted(id_ for place in places for id_ in self._batch[place].outbox_ids)  # type: ignore[union-attr]
        await self._ask("relayed", encode.array(ids))

    async def _end_holds(self, places: list[int]) -> None:
        for place in places:
            ((ended,),) = await self._ask("end_holds", micros(self._batch[place].now))  # type: ignore[union-attr]
            self._outcomes[place] = Done(ended)

    async def _prune(self, places: list[int]) -> None:
        for place in places:
            prune: Any = self._batch[place]
            moments = micros(prune.finished_before), micros(prune.failed_before)
            doomed = await self._ask("prunable", *moments, prune.limit)
            self._outcomes[place] = Done(len(await self._gone(sorted(row[0] for row in doomed))))

    async def _batch_up(self, places: list[int]) -> None:
        for place in places:
            self._outcomes[place] = await batches.apply(self._batch[place], self._ask, self._now)

    async def _operate(self, places: list[int]) -> None:
        for place in places:
            self._outcomes[place] = await operators.apply(self._batch[place], self._ask, self._now)

    async def _keep_board(self, places: list[int]) -> None:
        for place in places:
            self._outcomes[place] = await board.apply(self._batch[place], self._ask, self._now)
