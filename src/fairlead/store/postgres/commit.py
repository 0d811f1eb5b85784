"""Applies a batch of transitions in one transaction: one statement per kind of transition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import asyncpg
import orjson

from fairlead.domain.budgets import Budgets
from fairlead.domain.job import Job
from fairlead.domain.prices import Prices
from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.store import budgets as budget_kinds
from fairlead.store import dashboard as dashboard_kinds
from fairlead.store import file_batches as file_batch_kinds
from fairlead.store import files as file_kinds
from fairlead.store import schedules as schedule_kinds
from fairlead.store import usage as usage_kinds
from fairlead.store import webhooks as webhook_kinds
from fairlead.store.budgets import SpentStart
from fairlead.store.commits import (
    DONE,
    MOVED_ELSEWHERE,
    MOVED_ON,
    NOT_FINISHED,
    NOT_STARTED,
    OTHER_RULES,
    SPENT,
    UNDECLARED,
    UNDONE,
    Sweep,
    moves_of,
    promoted_bands,
    taken_in,
)
from fairlead.store.port import (
    Adapt,
    Committed,
    DeclareServices,
    Done,
    EndHolds,
    FireTimers,
    OutboxEntry,
    Outcome,
    Override,
    OverrideRates,
    PromoteWaiting,
    Prune,
    RaiseEpoch,
    Relayed,
    Started,
    SweepResult,
    Transition,
    TurnedBack,
)
from fairlead.store.postgres import budgets, dashboard, encode, file_batches, files, records, schedules, usage, webhooks
from fairlead.store.postgres.moves import Moves
from fairlead.store.postgres.queries import READS, WRITES
from fairlead.store.postgres.submit import run, submitting
from fairlead.store.records import ADMIN_KINDS, BATCH_KINDS
from fairlead.store.rows import job_of, micros, micros_by
from fairlead.store.rules import adapted_row, declaration_of, overridden, rate_rows, rules_of


class Undone(Exception):
    """Raised if a submit of an all-or-nothing batch was refused. The caller rolls the transaction back and returns the
    outcomes in `committed`."""

    def __init__(self, committed: Committed) -> None:
        super().__init__()
        self.committed = committed


class Commit:
    """Applies a batch within an open transaction of `connection`. An *index* is the position of a transition in the
    batch."""

    def __init__(
        self,
        connection: asyncpg.Connection,
        batch: Sequence[Transition],
        *,
        origin: str,
        now: int,
        scopes: set[str],
        prices: Prices,
        budgets_: Budgets,
        all_or_nothing: bool,
    ) -> None:
        self._connection = connection
        self._batch = batch
        self._origin = origin
        self._now = now
        self._scopes = scopes  # scopes known to have an epoch row
        self._all_or_nothing = all_or_nothing
        self._outcomes: list[Outcome | Exception] = [DONE] * len(batch)
        self._changes: list[OutboxEntry] = []
        self._budgets = budgets.CommitBudgets(self._ask, budgets_, prices, now) if budgets_ else None
        self._moves = Moves(self._ask, origin=origin, now=now, prices=prices, budgets=self._budgets)
        self._spent: dict[int, SpentStart] = {}  # starts whose budget is spent, by index
        self._swept: set[str] = set()
        self._ending: list[Job] | None = None

    async def apply(self, skip: Iterable[int] = ()) -> Committed:
        """Apply the batch. `skip` holds the indexes of transitions that already have an outcome."""
        kinds: dict[type, list[int]] = {}
        for index, transition in enumerate(self._batch):
            kinds.setdefault(type(transition), []).append(index)
        for index in skip:
            kinds[type(self._batch[index])].remove(index)
        # Rules are always locked before epochs. Jobs are inserted before jobs are moved or deleted.
        steps: tuple[tuple[type, Callable[[list[int]], Any]], ...] = (
            (DeclareServices, self._declare),
            (Override, self._override),
            (OverrideRates, self._override_rates),
            (Adapt, self._adapt),
            (RaiseEpoch, self._raise_epochs),
            (Submit, self._submit),
            (Start, self._start),
            (Move, self._move),
            (Progress, self._progress),
            (Prioritise, self._prioritise),
            (Adopt, self._adopt),
            (Delete, self._delete),
            (Start, self._turn_back),
            # Neither a sweep nor any later statement of this commit waits for a job's row. A process that waits for a
            # row locked by the sweep therefore waits only for the rest of this commit, and cannot cause a deadlock.
            (FireTimers, self._sweep),
            (PromoteWaiting, self._sweep),
            (Relayed, self._relayed),
            (EndHolds, self._end_holds),
            (Prune, self._prune),
            *((kind, self._job_batches) for kind in BATCH_KINDS),
            *((kind, self._operate) for kind in ADMIN_KINDS),
            *((kind, self._dashboard) for kind in dashboard_kinds.KINDS),
            *((kind, self._usage) for kind in usage_kinds.KINDS),
            *((kind, self._write_budgets) for kind in budget_kinds.KINDS),
            *((kind, self._files) for kind in file_kinds.KINDS),
            *((kind, self._file_batches) for kind in file_batch_kinds.KINDS),
            *((kind, self._webhooks) for kind in webhook_kinds.KINDS),
            *((kind, self._schedules) for kind in schedule_kinds.KINDS),
        )
        for kind, step in steps:
            if indexes := kinds.get(kind):
                await step(indexes)
        return Committed(self._outcomes, [*self._changes, *self._moves.changes])

    def _by_job(self, indexes: Iterable[int]) -> list[int]:
        """Sort the indexes by job id. Rows are locked in the order of the arrays, so every process must sort them in
        the same way."""
        return sorted(indexes, key=lambda index: self._batch[index].job_id)  # type: ignore[union-attr]

    def _of(self, indexes: Sequence[int]) -> list[Any]:
        return [self._batch[index] for index in indexes]

    def _job_id(self, index: int) -> str:
        return self._batch[index].job_id  # type: ignore[union-attr]

    async def _ask(self, name: str, *parameters: Any) -> list[Any]:
        return list(await self._connection.fetch(WRITES[name], *parameters))

    # ------------------------------------------------------------ the rules and the epochs

    async def _raise_epochs(self, indexes: list[int]) -> None:
        raises: dict[int, Any] = {index: self._batch[index] for index in indexes}
        version = None
        if any(one.version is not None for one in raises.values()):
            ((version,),) = await self._ask("share_rules")
        # Sorted by scope, because the rows stay locked.
        for index, raising in sorted(raises.items(), key=lambda item: item[1].scope):
            if raising.version not in (None, version):
                self._outcomes[index] = OTHER_RULES
                continue
            ((number,),) = await self._ask("raise_epoch", raising.scope, raising.server)
            self._outcomes[index] = Done(number)

    async def _declare(self, indexes: list[int]) -> None:
        for index in indexes:
            declaration: Any = self._batch[index]
            ((_, version),) = await self._ask("lock_rules")
            if declaration.based_on not in (None, version):
                self._outcomes[index] = OTHER_RULES
                continue
            if await self._ask("declare", declaration_of(declaration)) and declaration.moved:
                await self._ask("leave_epochs", sorted(declaration.moved))
            self._outcomes[index] = Done(await self._rules())

    async def _override(self, indexes: list[int]) -> None:
        for index in indexes:
            override: Any = self._batch[index]
            if not await self._lock_rules_of(override.service):
                self._outcomes[index] = UNDECLARED
                continue
            rows = await self._ask("override_of", override.service)
            before = tuple(rows[0]) if rows else (None, None)
            after = overridden(before, override)
            if before != after:
                await self._ask("override", override.service, *after)
                await self._ask("raise_version")
            self._outcomes[index] = Done(await self._rules())

    async def _override_rates(self, indexes: list[int]) -> None:
        for index in indexes:
            override: Any = self._batch[index]
            ((_, version),) = await self._ask("lock_rules")
            if override.based_on != version:
                self._outcomes[index] = OTHER_RULES
                continue
            for *of, rate in rate_rows(override):
                await (self._ask("lift_rate", *of) if rate is None else self._ask("override_rate", *of, rate))
            if override.moved:
                await self._ask("leave_epochs", sorted(override.moved))
            await self._ask("raise_version")
            self._outcomes[index] = Done(await self._rules())

    async def _adapt(self, indexes: list[int]) -> None:
        for index in indexes:
            service, was, *now = adapted_row(self._batch[index])  # type: ignore[arg-type]
            declared = await self._lock_rules_of(service)
            rows = await self._ask("adapted_of", service)
            if not declared or (rows[0][0] if rows else None) != was:
                self._outcomes[index] = MOVED_ELSEWHERE
                continue
            await self._ask("adapt", service, *now)
            ((version,),) = await self._ask("raise_version")
            self._outcomes[index] = Done(version)

    async def _lock_rules_of(self, service: str) -> bool:
        """Lock the rules of a service. Returns False if the service is not declared."""
        ((declared, _),) = await self._ask("lock_rules")
        return any(each["service"] == service for each in orjson.loads(declared)["services"])

    async def _rules(self) -> Any:
        version, *texts = (await self._connection.fetch(READS["rules"]))[0]
        return rules_of([version, *map(orjson.loads, texts)])

    # ------------------------------------------------------------ submit and start

    async def _submit(self, indexes: list[int]) -> None:
        submits, everything = self._of(indexes), self._all_or_nothing
        statements = submitting(submits, origin=self._origin, now=self._now, all_or_nothing=everything)
        submitted = await run(statements, lambda sql, parameters: self._connection.fetch(sql, *parameters))
        for index, outcome in zip(indexes, submitted.outcomes, strict=True):
            self._outcomes[index] = outcome
        self._changes += submitted.changes
        if submitted.undone:
            others = set(range(len(self._batch))).difference(indexes)
            for index in others:
                self._outcomes[index] = UNDONE
            raise Undone(Committed(self._outcomes, []))

    async def _start(self, indexes: list[int]) -> None:
        """Apply the starts, and refuse those whose lease has an older epoch. The epochs of the applied starts stay
        locked until this commit ends."""
        starts: list[Any] = self._of(indexes)
        scopes = sorted({start.scope for start in starts})
        if unknown := [scope for scope in scopes if scope not in self._scopes]:
            await self._ask("create_epochs", unknown)
        epochs = dict(map(tuple, await self._ask("share_epochs", scopes)))
        current = []
        for index, start in zip(indexes, starts, strict=True):
            self._outcomes[index] = NOT_STARTED
            if encode.epoch_of(start.lease) == epochs.get(start.scope, 0):
                current.append(index)
        current = await self._admitted(current)
        if not current:
            return
        current = self._by_job(current)
        rows = await self._ask("start", *encode.start_columns(self._of(current)), self._now)
        started = []
        for n, input_json, context_json, *row in rows:
            started.append(job := job_of(row))
            self._outcomes[current[n - 1]] = Started(job, input_json, context_json)
        await self._unqueue({job.id for job in started})
        if self._budgets is not None:
            await self._budgets.started(started)

    async def _unqueue(self, started: Set[str]) -> None:
        """Delete the outbox rows of jobs that this commit has both accepted and started. Jobs may share a row."""
        waiting = [change for change in self._changes if change.job_id not in started]
        rows = {change.outbox_id for change in self._changes} - {change.outbox_id for change in waiting}
        if rows:
            await self._ask("relayed", encode.array(sorted(rows)))
        self._changes = waiting

    async def _admitted(self, indexes: list[int]) -> list[int]:
        """Leave out the starts whose budget is spent."""
        if self._budgets is None or not indexes:
            return indexes
        spent = await self._budgets.admit(self._of(indexes), await self._calls())
        self._spent = {index: spent[job_id] for index in indexes if (job_id := self._job_id(index)) in spent}
        if self._spent:
            # Together with the jobs that are started, because `_turn_back` must not wait for them later: it holds other
            # jobs by then, for which a process that has locked these may be waiting.
            await self._ask("lock_jobs", sorted(map(self._job_id, indexes)))
        return [index for index in indexes if index not in self._spent]

    async def _turn_back(self, _: list[int]) -> None:
        """Hold or demote the jobs whose budget is spent, and other waiting jobs of their users."""
        for index, one in self._spent.items():
            assert self._budgets is not None
            moves = await self._budgets.turned_back(one, sorted(taken_in(self._batch) | self._swept))
            moves = [(job, move) for job, move in moves if job.id not in self._swept]
            applied = [moves[n] for n in sorted(await self._moves.apply([move for _, move in moves]))]
            await self._budgets.held(one, applied)
            self._swept.update(job.id for job, _ in moves)
            self._outcomes[index] = TurnedBack(SPENT, applied) if applied else NOT_STARTED

    # ------------------------------------------------------------ move and sweep

    async def _move(self, indexes: list[int]) -> None:
        await self._lock_counters()
        applied = await self._moves.apply(self._of(indexes))
        for n, index in enumerate(indexes):
            self._outcomes[index] = DONE if n in applied else MOVED_ON

    async def _lock_counters(self) -> None:
        """Lock the counters of the calls that this commit ends, before the rows of their jobs. Otherwise a sweep that
        ends a call at its deadline and the commit that completes the call would wait for each other."""
        if self._budgets is not None:
            await self._budgets.lock(await self._calls())

    async def _calls(self) -> list[Job]:
        """The jobs whose calls this commit ends: those of its moves, and those whose deadline has passed."""
        if self._ending is None:
            moves = [one for one in self._batch if isinstance(one, Move)]
            self._ending = [move.call.job for move in moves if move.call is not None]
            for one in self._batch:
                if isinstance(one, FireTimers):
                    rows = await self._ask("due_calls", min(micros_by(one.now), self._now), one.limit)
                    self._ending += map(job_of, rows)
        return self._ending

    async def _sweep(self, indexes: list[int]) -> None:
        await self._lock_counters()
        taken = taken_in(self._batch) | self._swept
        for index in indexes:
            sweep: Any = self._batch[index]
            jobs = await self._due(sweep, sorted(taken))
            moves = moves_of(sweep, jobs)
            applied = await self._moves.apply([move for _, move in moves])
            self._outcomes[index] = Done(SweepResult(len(jobs), [moves[n] for n in sorted(applied)]))
            self._swept.update(job.id for job in jobs)
            taken |= self._swept

    async def _due(self, sweep: Sweep, taken: list[str]) -> list[Job]:
        if isinstance(sweep, FireTimers):
            rows = await self._ask("due", min(micros_by(sweep.now), self._now), sweep.limit, taken)
        else:
            rows = []
            for band, before in promoted_bands(sweep):
                if limit := sweep.limit - len(rows):
                    rows += await self._ask("promotable", micros(before), limit, taken, band)
        return [job_of(row) for row in rows]

    # ------------------------------------------------------------ progress, delete, and the manager's housekeeping

    async def _progress(self, indexes: list[int]) -> None:
        await self._match("progress", indexes, encode.progress_columns, self._now)

    async def _prioritise(self, indexes: list[int]) -> None:
        await self._match("prioritise", indexes, encode.prioritise_columns)

    async def _adopt(self, indexes: list[int]) -> None:
        await self._match("adopt", indexes, encode.adopt_columns)

    async def _match(
        self, name: str, indexes: list[int], columns: Callable[[Iterable[Any]], encode.Columns], *more: Any
    ) -> None:
        """Apply transitions that are refused if the job's `run` has changed, and that do not raise `run`. `name` is the
        statement, which returns the numbers, from 1, of the transitions that changed a job."""
        indexes = self._by_job(indexes)
        for index in indexes:
            self._outcomes[index] = MOVED_ON
        for (n,) in await self._ask(name, *columns(self._of(indexes)), *more):
            self._outcomes[indexes[n - 1]] = DONE

    async def _delete(self, indexes: list[int]) -> None:
        ids = [self._batch[index].job_id for index in self._by_job(indexes)]  # type: ignore[union-attr]
        gone = set(await self._delete_ids(ids))
        for index in indexes:
            self._outcomes[index] = DONE if self._batch[index].job_id in gone else NOT_FINISHED  # type: ignore[union-attr]

    async def _delete_ids(self, ids: list[str]) -> list[str]:
        """Delete these jobs if they have finished, and return the ids of the deleted ones."""
        gone = [row[0] for row in await self._ask("delete", ids)] if ids else []
        if gone:
            await self._ask("strike_counts", gone)
            await self._ask("release_files", gone, self._now)
        return gone

    async def _relayed(self, indexes: list[int]) -> None:
        ids = sorted(id_ for index in indexes for id_ in self._batch[index].outbox_ids)  # type: ignore[union-attr]
        await self._ask("relayed", encode.array(ids))

    async def _end_holds(self, indexes: list[int]) -> None:
        for index in indexes:
            now = min(micros_by(self._batch[index].now), self._now)  # type: ignore[union-attr]
            ((ended,),) = await self._ask("end_holds", now)
            self._outcomes[index] = Done(ended)

    async def _prune(self, indexes: list[int]) -> None:
        for index in indexes:
            prune: Any = self._batch[index]
            moments = micros(prune.finished_before), micros(prune.failed_before)
            prunable = await self._ask("prunable", *moments, prune.limit)
            self._outcomes[index] = Done(len(await self._delete_ids(sorted(row[0] for row in prunable))))

    async def _job_batches(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await records.apply_batch(self._batch[index], self._ask, self._now)

    async def _operate(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await records.apply_operator(self._batch[index], self._ask, self._now)

    async def _dashboard(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await dashboard.apply(self._batch[index], self._ask, self._now)

    async def _usage(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await usage.apply(self._batch[index], self._ask)

    async def _write_budgets(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await budgets.apply(self._batch[index], self._ask, self._now)

    async def _files(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await files.apply(self._batch[index], self._ask, self._now)

    async def _file_batches(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await file_batches.apply(self._batch[index], self._ask, self._now)

    async def _webhooks(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await webhooks.apply(self._batch[index], self._ask, self._now)

    async def _schedules(self, indexes: list[int]) -> None:
        for index in indexes:
            self._outcomes[index] = await schedules.apply(self._batch[index], self._ask, self._now)
