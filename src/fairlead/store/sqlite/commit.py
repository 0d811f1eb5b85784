"""Encodes a batch of transitions for the database, and decodes the answer.

`CommitBatch` groups the transitions by kind and encodes each kind as a row of the view `batch` (see `apply.sql`). After
the commit, `committed` converts the answer into one outcome per transition. If the batch has sweeps, `sweep` must be
called first. It selects the jobs that are due and adds their moves to the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.prices import NO_PRICES, Prices
from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.errors import IdempotencyMismatch, RequestError, TooManyWaiting
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
    taken_in,
)
from fairlead.store.port import (
    Accepted,
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
    Refused,
    Relayed,
    Started,
    SweepResult,
    Transition,
    TurnedBack,
)
from fairlead.store.records import ADMIN_KINDS, BATCH_KINDS
from fairlead.store.rows import job_of, jobs_of, numbered, running
from fairlead.store.rules import rules_of
from fairlead.store.sqlite import budgets, dashboard, encode, file_batches, files, schedules, usage, webhooks
from fairlead.store.sqlite.records import OUTCOMES, batch_rows, operator_rows

# The order in which kinds are applied: rules first; jobs are inserted before they move or are deleted.
_ENCODERS: tuple[tuple[type, Callable[[Any], list[encode.Row]]], ...] = (
    (DeclareServices, encode.declare_rows),
    (Override, encode.override_rows),
    (OverrideRates, encode.override_rate_rows),
    (Adapt, encode.adapt_rows),
    (RaiseEpoch, encode.epoch_rows),
    (Submit, encode.submit_rows),
    (Start, encode.start_rows),
    (Move, encode.move_rows),
    (Progress, encode.progress_rows),
    (Prioritise, encode.prioritise_rows),
    (Adopt, encode.adopt_rows),
    (Delete, encode.delete_rows),
    (Relayed, encode.relayed_rows),
    (EndHolds, encode.end_holds_rows),
    (Prune, encode.prune_rows),
    *((kind, batch_rows) for kind in BATCH_KINDS),
    *((kind, operator_rows) for kind in ADMIN_KINDS),
    *((kind, dashboard.board_rows) for kind in dashboard_kinds.KINDS),
    *((kind, usage.usage_rows) for kind in usage_kinds.KINDS),
    *((kind, budgets.budget_rows) for kind in budget_kinds.KINDS),
    *((kind, files.file_rows) for kind in file_kinds.KINDS),
    *((kind, file_batches.file_batch_rows) for kind in file_batch_kinds.KINDS),
    *((kind, webhooks.webhook_rows) for kind in webhook_kinds.KINDS),
    *((kind, schedules.schedule_rows) for kind in schedule_kinds.KINDS),
)
_ENCODER = dict(_ENCODERS)
_RANK = {kind: rank for rank, (kind, _) in enumerate(_ENCODERS)}

# The kinds whose answer has a value for each transition: its name, and the outcome for a value.
_VALUED: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    RaiseEpoch: ("epoch", lambda number: OTHER_RULES if number is None else Done(number)),
    DeclareServices: ("rules", lambda value: OTHER_RULES if value is None else Done(rules_of(value))),
    Override: ("override", lambda value: UNDECLARED if value is None else Done(rules_of(value))),
    OverrideRates: ("rates", lambda value: OTHER_RULES if value is None else Done(rules_of(value))),
    Adapt: ("adapt", lambda version: MOVED_ELSEWHERE if version is None else Done(version)),
    EndHolds: ("ended", Done),
    Prune: ("pruned", Done),
    **OUTCOMES,
    **budgets.OUTCOMES,
    **files.OUTCOMES,
    **file_batches.OUTCOMES,
    **webhooks.OUTCOMES,
    **schedules.OUTCOMES,
}
# The kinds whose answer has the positions of the transitions that changed something.
_MATCHED = {
    Progress: ("progressed", MOVED_ON),
    Prioritise: ("prioritised", MOVED_ON),
    Adopt: ("adopted", MOVED_ON),
    Delete: ("deleted", NOT_FINISHED),
}


class CommitBatch:
    """A batch of transitions, grouped by kind. An *index* is the position of a transition in the original batch."""

    def __init__(
        self,
        transitions: Sequence[Transition],
        now: int,
        *,
        all_or_nothing: bool = False,
        prices: Prices = NO_PRICES,
        budgets: budgets.CommitBudgets | None = None,
    ) -> None:
        self._transitions = transitions
        self._now = now
        self._prices = prices
        self._budgets = budgets
        self._all_or_nothing = all_or_nothing
        self._indexes: dict[type, list[int]] = {}
        for index, transition in enumerate(transitions):
            self._indexes.setdefault(type(transition), []).append(index)
        self._found: dict[int, int] = {}  # number of jobs per sweep
        self._swept: list[tuple[int, Job, Move]] = []  # (index of the sweep or start, job, move)
        self._spent: dict[int, SpentStart] = {}  # starts whose budget is spent, by index
        self._begins: dict[str, tuple[int, Start]] = {}  # starts of jobs in this batch, numbered, by job

    @property
    def sweeps(self) -> list[int]:
        return [*self._indexes.get(FireTimers, ()), *self._indexes.get(PromoteWaiting, ())]

    @property
    def reads_first(self) -> bool:
        """Whether `admit` and `sweep` have to be called before `rows`."""
        if self.sweeps:
            return True
        charges = None if self._budgets is None else self._budgets.charges
        starts: Any = (self._transitions[index] for index in self._indexes.get(Start, ()))
        return charges is not None and any(map(charges.may_concern, starts))

    def admit(self, read: budgets.Read) -> None:
        """Leave out the starts whose budget is spent, and add the moves that hold or demote their jobs, and other
        waiting jobs of their users. `read` runs a query within the transaction of the commit."""
        indexes = self._indexes.get(Start)
        if self._budgets is None or not indexes:
            return
        starts: list[Any] = [self._transitions[index] for index in indexes]
        new = {one.job.id: one.job for one in self._transitions if isinstance(one, Submit)}
        spent = self._budgets.admit(starts, new, read)
        self._spent = {
            i: spent[start.job_id] for i, start in zip(indexes, starts, strict=True) if start.job_id in spent
        }
        taken = taken_in(self._transitions)
        for index, one in self._spent.items():
            services, low, limit = self._budgets.charges.waiting_with(one)
            if limit:
                named = None if services is None else encode.json_body(services)
                left_out = encode.json_body(sorted(taken))
                one.others = jobs_of(read("waiting_of_user", one.job.user_id, named, left_out, limit, low))
            self._swept += [(index, job, move) for job, move in self._budgets.charges.turned_back(one)]
            taken.update(job.id for job in one.others)

    def sweep(self, find: Callable[[Sweep, Sequence[str]], list[Job]]) -> None:
        """Add the moves of the batch's sweeps to the batch. `find` selects the jobs that are due for a sweep. Its
        second argument holds the ids of jobs to leave out: those that the batch already changes."""
        taken = taken_in(self._transitions) | {job.id for _, job, _ in self._swept}
        for index in self.sweeps:
            sweep: Any = self._transitions[index]
            jobs = find(sweep, sorted(taken))
            self._found[index] = len(jobs)
            self._swept += [(index, job, move) for job, move in moves_of(sweep, jobs)]
            taken.update(job.id for job in jobs)

    def rows(self) -> list[encode.Row]:
        rows: list[encode.Row] = [("begin", None)]
        kinds = [kind for kind in self._indexes if kind in _RANK]
        if self._swept and Move not in self._indexes:
            kinds.append(Move)
        if len(kinds) > 1:
            kinds.sort(key=_RANK.__getitem__)
        for kind in kinds:
            rows += self._rows_of(kind)
        return rows

    def _rows_of(self, kind: type) -> list[encode.Row]:
        transitions: list[Any] = [self._transitions[i] for i in self._indexes.get(kind, ()) if i not in self._spent]
        if kind is Move:
            transitions += [move for _, _, move in self._swept]
        if not transitions:
            return []
        if kind is Submit:
            self._begin(transitions)
            rows = encode.submit_rows(transitions, all_or_nothing=self._all_or_nothing, starts=self._begins)
            return rows + files.uses_of_submits(transitions)
        if kind is Start:
            rows = encode.start_rows(transitions, self._begins)
            return rows if self._budgets is None else rows + self._budgets.reserve_rows(transitions)
        if kind is Move:
            rows = encode.move_rows(transitions, self._prices)
            rows += files.uses_of_moves(transitions)
            rows += webhooks.rows_of_moves(transitions)
            return rows if self._budgets is None else rows + self._budgets.rows_of_moves(transitions, self._held())
        return _ENCODER[kind](transitions)

    def _begin(self, submits: Sequence[Submit]) -> None:
        """Find the starts of jobs that this batch submits. These jobs are inserted as started jobs."""
        starts: list[Any] = [self._transitions[index] for index in self._unspent_starts()]
        if not starts:
            return
        numbered = {start.job_id: (n, start) for n, start in enumerate(starts)}
        for job in (submit.job for submit in submits):
            n, start = numbered.get(job.id, (0, None))
            if start is None or job.status is not JobStatus.PENDING:
                continue
            if start.run == job.run and start.step == job.step:
                self._begins[job.id] = n, start

    def _held(self) -> list[tuple[int, Job, SpentStart]]:
        """The moves of starts whose budget is spent, each with its number among all moves."""
        before = len(self._indexes.get(Move, ()))
        return [(n, job, self._spent[i]) for n, (i, job, _) in enumerate(self._swept, before) if i in self._spent]

    def committed(self, answer: str) -> Committed:
        """Convert the answer of the database into one outcome per transition, and the outbox rows that were written."""
        self._outcomes: list[Outcome | Exception] = [DONE] * len(self._transitions)
        self._values: dict[str, list[Any]] = {}
        for kind, value in orjson.loads(answer):
            self._values.setdefault(kind, []).append(value)
        self._started()
        changes = self._submitted()
        self._moved()
        for kind in self._indexes:
            if kind in _VALUED:
                self._valued(kind, *_VALUED[kind])
            elif kind in _MATCHED:
                self._matched(kind, *_MATCHED[kind])
        changes += [OutboxEntry(outbox_id, row[1], job_of(row)) for outbox_id, row in self._only("changes")]
        return Committed(self._outcomes, changes)

    def _submitted(self) -> list[OutboxEntry]:
        """Set the outcomes of submits, and of the starts of their jobs. The answer holds only the last seq and the last
        outbox id. Accepted jobs have consecutive seqs, in order, and those that entered the queue have consecutive
        outbox ids."""
        indexes = self._indexes.get(Submit)
        if indexes is None:
            return []
        last_seq, last_outbox = self._only("submit")
        refused = {n: reason for n, *reason in self._only("turned_away")}
        seq, late = last_seq or 0, bool(self._only("late"))
        begun = self._begun()
        changes: list[OutboxEntry] = []
        for n in range(len(indexes) - 1, -1, -1):
            submit: Any = self._transitions[indexes[n]]
            if n in refused:
                self._outcomes[indexes[n]] = _refusal(submit, *refused[n])
                continue
            job = submit.job
            self._outcomes[indexes[n]] = Accepted(job.id, seq)
            if job.id in begun:
                start: Any = self._transitions[begun[job.id]]
                self._outcomes[begun[job.id]] = Started(running(job, start, seq, self._now), submit.input_json, "{}")
            elif job.status is JobStatus.PENDING:
                changes.append(OutboxEntry(last_outbox - len(changes), job.id, numbered(job, seq), late))
            seq -= 1
        changes.reverse()
        return changes

    def _begun(self) -> dict[str, int]:
        """The jobs that were started by the commit that submitted them, with the indexes of their starts."""
        if not self._begins:
            return {}
        indexes, numbers = self._unspent_starts(), set(self._only("begun"))
        return {job_id: indexes[n] for job_id, (n, _) in self._begins.items() if n in numbers}

    def _started(self) -> None:
        """Set the outcomes of starts, except those of jobs that the same batch submits."""
        if Start not in self._indexes:
            return
        for index in self._indexes[Start]:
            self._outcomes[index] = NOT_STARTED
        indexes = self._unspent_starts()
        for n, row, input_json, context_json in self._only("started"):
            self._outcomes[indexes[n]] = Started(job_of(row), input_json, context_json)

    def _unspent_starts(self) -> list[int]:
        return [index for index in self._indexes.get(Start, ()) if index not in self._spent]

    def _moved(self) -> None:
        """Set the outcomes of moves and sweeps. In the answer, the moves of the batch come first, then the moves of its
        sweeps."""
        self._matched(Move, "moved", MOVED_ON)
        if not self._found and not self._spent:
            return
        before, moved = len(self._indexes.get(Move, ())), set(self._only("moved"))
        moves: dict[int, list[tuple[Job, Move]]] = {}
        for n, (index, job, move) in enumerate(self._swept, before):
            if n in moved:
                moves.setdefault(index, []).append((job, move))
        for index, found in self._found.items():
            self._outcomes[index] = Done(SweepResult(found, moves.get(index, [])))
        for index in self._spent:
            self._outcomes[index] = TurnedBack(SPENT, moves[index]) if index in moves else NOT_STARTED

    def _matched(self, kind: type, answer: str, refused: Refused) -> None:
        """Refuse the transitions of one kind that changed nothing. The answer holds the positions, among the
        transitions of this kind, of those that changed something. The moves of sweeps are counted after the moves of
        the batch."""
        indexes = self._indexes.get(kind)
        if indexes is None:
            return
        matched = self._only(answer)
        if len(matched) == len(indexes) + len(self._swept):
            return
        for n in set(range(len(indexes))).difference(matched):
            self._outcomes[indexes[n]] = refused

    def _valued(self, kind: type, answer: str, outcome: Callable[[Any], Outcome]) -> None:
        """Set the outcomes of all transitions of one kind. The answer for this kind holds one value per transition, in
        order."""
        for index, value in zip(self._indexes.get(kind, ()), self._values.get(answer, ()), strict=True):
            self._outcomes[index] = outcome(value)

    def _only(self, answer: str) -> Any:
        values = self._values.get(answer)
        return values[0] if values else ()


def _refusal(submit: Any, why: str, job_id: str | None, seq: int | None) -> Outcome | RequestError:
    if why == "replayed" and job_id is not None:
        return Accepted(job_id, seq or 0, replayed=True)
    if why == "mismatch":
        return IdempotencyMismatch(
            "this Idempotency-Key was used with another body", details={"key": submit.idempotency_key}
        )
    if why == "too_many":
        return TooManyWaiting(f"this user already has {submit.max_waiting} jobs waiting, which is the limit")
    return UNDONE
