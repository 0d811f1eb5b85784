"""A batch of transitions on its way into the database, and the database's answer on its way back.

`Batch` sorts transitions by kind and renders each kind as a row of the view `batch` (see `apply.sql`); after the
commit, `committed` turns the answer into one outcome per transition. If there are sweeps in it, `sweep` must find their
jobs first: from then on their moves are among the batch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from fairlead.domain.job import Job, JobStatus
from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.errors import IdempotencyMismatch, RequestError, TooManyWaiting
from fairlead.store import batches as batch_kinds
from fairlead.store import board as board_kinds
from fairlead.store.operators import KINDS
from fairlead.store.port import (
    Accepted,
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
from fairlead.store.rows import job_of, numbered
from fairlead.store.settings import rules_of
from fairlead.store.sqlite import batches, board, encode
from fairlead.store.sqlite.operators import OUTCOMES, operator_rows
from fairlead.store.sweeps import Sweep, moves_of, taken_in

MOVED_ON = Refused("the job moved on or is not there")
NOT_STARTED = Refused("the job moved on, is not there, or the epoch changed")
NOT_FINISHED = Refused("the job is not finished or is not there")
UNDECLARED = Refused("no such service is declared")
MOVED_ELSEWHERE = Refused("no such service is declared, or its limit was moved meanwhile")
UNDONE = Refused("another one of the same bulk was turned away")
DONE = Done()

# The order in which the kinds are applied: the rules first, and jobs enter before they move and go.
_ENCODERS: tuple[tuple[type, Callable[[Any], list[encode.Row]]], ...] = (
    (RaiseEpoch, encode.epoch_rows),
    (DeclareServices, encode.declare_rows),
    (Override, encode.override_rows),
    (Adapt, encode.adapt_rows),
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
    *((kind, batches.batch_rows) for kind in batch_kinds.KINDS),
    *((kind, operator_rows) for kind in KINDS),
    *((kind, board.board_rows) for kind in board_kinds.KINDS),
)


class Batch:
    """Transitions sorted by kind; a *place* is an index into the batch as it was given."""

    def __init__(self, transitions: Sequence[Transition], *, all_or_nothing: bool = False) -> None:
        self._transitions = transitions
        self._all_or_nothing = all_or_nothing
        self._places: dict[type, list[int]] = {}
        for place, transition in enumerate(transitions):
            self._places.setdefault(type(transition), []).append(place)
        self._found: dict[int, int] = {}  # by place, how many jobs the sweep found
        self._swept: list[tuple[int, Job, Move]] = []  # (place of the sweep, a job that it found, its move)

    @property
    def sweeps(self) -> list[int]:
        return [*self._places.get(RingTimers, ()), *self._places.get(PromoteWaiting, ())]

    def sweep(self, find: Callable[[Sweep, Sequence[str]], list[Job]]) -> None:
        """`find` answers with the jobs that are due, without those that it is given."""
        taken = taken_in(self._transitions)
        for place in self.sweeps:
            sweep: Any = self._transitions[place]
            jobs = find(sweep, sorted(taken))
            self._found[place] = len(jobs)
            self._swept += [(place, job, move) for job, move in moves_of(sweep, jobs)]
            taken.update(job.id for job in jobs)

    def rows(self) -> list[encode.Row]:
        rows: list[encode.Row] = [("begin", None)]
        for kind, encoder in _ENCODERS:
            transitions = [self._transitions[place] for place in self._places.get(kind, ())]
            if kind is Move:
                transitions += [move for _, _, move in self._swept]
            if not transitions:
                continue
            if kind is Submit and self._all_or_nothing:
                rows += encode.submit_rows(transitions, all_or_nothing=True)  # type: ignore[arg-type]
            else:
                rows += encoder(transitions)
        return rows

    def committed(self, answer: str) -> Committed:
        """One outcome per transition, and the outbox rows that were written."""
        self._outcomes: list[Outcome | Exception] = [DONE] * len(self._transitions)
        self._values: dict[str, list[Any]] = {}
        for kind, value in orjson.loads(answer):
            self._values.setdefault(kind, []).append(value)
        changes = self._submitted()
        self._started()
        self._moved()
        self._matched(Progress, "progressed", MOVED_ON)
        self._matched(Prioritise, "prioritised", MOVED_ON)
        self._matched(Adopt, "adopted", MOVED_ON)
        self._matched(Delete, "deleted", NOT_FINISHED)
        self._valued(RaiseEpoch, "epoch", Done)
        self._valued(DeclareServices, "rules", lambda value: Done(rules_of(value)))
        self._valued(Override, "override", lambda value: UNDECLARED if value is None else Done(rules_of(value)))
        self._valued(Adapt, "adapt", lambda version: MOVED_ELSEWHERE if version is None else Done(version))
        self._valued(EndHolds, "ended", Done)
        self._valued(Prune, "pruned", Done)
        for kind, (name, outcome) in (OUTCOMES | batches.OUTCOMES).items():
            if kind in self._places:
                self._valued(kind, name, outcome)
        changes += [LineChange(outbox_id, row[1], job_of(row)) for outbox_id, row in self._only("changes")]
        return Committed(self._outcomes, changes)

    def _submitted(self) -> list[LineChange]:
        """Accepted jobs were given consecutive numbers in their order, and those in line consecutive outbox rows."""
        places = self._places.get(Submit)
        if places is None:
            return []
        last_seq, last_outbox = self._only("submit")
        turned_away = {n: verdict for n, *verdict in self._only("turned_away")}
        seq = last_seq or 0
        changes: list[LineChange] = []
        for n in range(len(places) - 1, -1, -1):
            submit: Any = self._transitions[places[n]]
            if n in turned_away:
                self._outcomes[places[n]] = _verdict(submit, *turned_away[n])
                continue
            job = submit.job
            self._outcomes[places[n]] = Accepted(job.id, seq)
            if job.status is JobStatus.PENDING:
                changes.append(LineChange(last_outbox - len(changes), job.id, numbered(job, seq)))
            seq -= 1
        changes.reverse()
        return changes

    def _started(self) -> None:
        places = self._places.get(Start, ())
        for place in places:
            self._outcomes[place] = NOT_STARTED
        for n, row, input_json, context_json in self._only("started"):
            self._outcomes[places[n]] = Started(job_of(row), input_json, context_json)

    def _moved(self) -> None:
        """The moves of the batch itself come first, and those of its sweeps after them."""
        self._matched(Move, "moved", MOVED_ON)
        if not self._found:
            return
        before, moved = len(self._places.get(Move, ())), set(self._only("moved"))
        for place, found in self._found.items():
            moves = [(job, move) for n, (of, job, move) in enumerate(self._swept, before) if of == place and n in moved]
            self._outcomes[place] = Done(Rung(found, moves))

    def _matched(self, kind: type, answer: str, refused: Refused) -> None:
        """The answer lists those of this kind that changed something, and for moves those of the sweeps too."""
        places = self._places.get(kind)
        if places is None:
            return
        matched = self._only(answer)
        if len(matched) == len(places) + len(self._swept):
            return
        for n in set(range(len(places))).difference(matched):
            self._outcomes[places[n]] = refused

    def _valued(self, kind: type, answer: str, outcome: Callable[[Any], Outcome]) -> None:
        """Each of this kind has an answer of its own, in their order."""
        for place, value in zip(self._places.get(kind, ()), self._values.get(answer, ()), strict=True):
            self._outcomes[place] = outcome(value)

    def _only(self, answer: str) -> Any:
        values = self._values.get(answer)
        return values[0] if values else ()


def _verdict(submit: Any, why: str, job_id: str | None, seq: int | None) -> Outcome | RequestError:
    if why == "replayed" and job_id is not None:
        return Accepted(job_id, seq or 0, replayed=True)
    if why == "mismatch":
        return IdempotencyMismatch(
            "this Idempotency-Key was used with another body", details={"key": submit.idempotency_key}
        )
    if why == "too_many":
        return TooManyWaiting(f"this user has {submit.max_waiting} jobs waiting already, which is the limit")
    return UNDONE
