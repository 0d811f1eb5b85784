"""The units that wait in the group commit. A unit is a group of transitions that go into one batch together, with the
caller that waits for their outcomes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar

from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.errors import RequestError
from fairlead.store.port import DeregisterProcess, Outcome, RegisterProcess, Transition
from fairlead.store.webhooks import RecordEvent

log = logging.getLogger("fairlead.group_commit")

WARN_EVERY = 10.0

Written = Callable[[Sequence[Outcome | Exception]], None]

_WITH_JOB_ID = frozenset({Start, Move, Progress, Prioritise, Adopt, Delete, RecordEvent})


def job_id_of(transition: Any) -> str | None:
    """The id of the job that a transition changes. None for writes that do not concern a single job."""
    kind = type(transition)
    if kind in _WITH_JOB_ID:
        job_id: str = transition.job_id
        return job_id
    return transition.job.id if kind is Submit else None


def subject_of(transition: Any) -> str | None:
    """The id of the job or process that a transition concerns, or None. Transitions of one subject are committed in
    order: a process must not be registered after its deregistration."""
    kind = type(transition)
    if kind is RegisterProcess:
        return f"process {transition.record.name}"
    return f"process {transition.name}" if kind is DeregisterProcess else job_id_of(transition)


def subjects_of(transitions: Sequence[Transition]) -> set[str]:
    if _WITH_JOB_ID.issuperset(map(type, transitions)):  # the common case, hundreds at a time
        return {transition.job_id for transition in transitions}  # type: ignore[union-attr]
    return {subject for subject in map(subject_of, transitions) if subject is not None}


class Unit:
    """A group of transitions that go into the same batch. `subjects` are the jobs and processes that they concern.
    `kind` is the type of all the transitions, or None if they have several types. A unit with `alone` forms a batch by
    itself."""

    __slots__ = ("alone", "kind", "subjects", "transitions")

    def __init__(self, transitions: Sequence[Transition], *, alone: bool = False) -> None:
        kinds = set(map(type, transitions))
        self.transitions = transitions
        self.subjects: Collection[str] = subjects_of(transitions)
        self.kind: type | None = kinds.pop() if len(kinds) == 1 else None
        self.alone = alone

    def parts(self) -> Iterator[Unit]:
        """The smaller units to commit one by one if the commit of this unit fails."""
        return iter(())

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError


class One(Unit):
    """A unit with the single transition of one caller. If the caller was cancelled, the outcome is dropped."""

    __slots__ = ("future",)

    def __init__(self, transition: Transition, future: asyncio.Future[Outcome]) -> None:
        subject = subject_of(transition)
        self.transitions = (transition,)
        self.subjects = () if subject is None else (subject,)
        self.kind = type(transition)
        self.alone = False
        self.future = future

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        outcome = outcomes[0]
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Atomic(Unit):
    """A unit whose transitions are committed all or not at all. If one of its submits can be refused with an error, the
    unit forms a batch by itself, because a refusal rolls the whole batch back."""

    __slots__ = ("future",)

    def __init__(self, transitions: Sequence[Transition], future: asyncio.Future[list[Outcome]]) -> None:
        super().__init__(transitions, alone=any(map(_may_be_refused, transitions)))
        self.future = future

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        good: list[Outcome] = []
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Exception):
                if isinstance(outcome, RequestError):
                    outcome.details["index"] = index
                self.fail(outcome)
                return
            good.append(outcome)
        if not self.future.done():
            self.future.set_result(good)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Chain(Unit):
    """A unit with transitions of one job that follow each other, such as its submit and its start. The kinds of
    transitions in a batch are applied in the order of a job's life. Chains share batches with other chains. `written`
    is called with the outcomes, or with the error in place of each."""

    __slots__ = ("_written",)

    def __init__(self, transitions: Sequence[Transition], written: Written) -> None:
        subject = subject_of(transitions[0])
        self.transitions = transitions
        self.subjects = () if subject is None else (subject,)
        self.kind = Chain
        self.alone = False
        self._written = written

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        _call(self._written, outcomes)

    def fail(self, error: Exception) -> None:
        self.resolve([error] * len(self.transitions))


def _call(written: Written, outcomes: Sequence[Outcome | Exception]) -> None:
    """Pass the outcomes to a caller. An error of the caller is logged: the other units of the batch must get their
    outcomes."""
    try:
        written(outcomes)
    except Exception:
        log.exception("a caller failed after its commit")


def _may_be_refused(transition: Transition) -> bool:
    return isinstance(transition, Submit) and (transition.idempotency_key is not None or transition.max_waiting > 0)


class Each:
    """Collects the outcomes of several independent transitions, and calls `written` once all outcomes are known."""

    __slots__ = ("_left", "_results", "_written")

    def __init__(self, size: int, written: Written) -> None:
        self._results: list[Outcome | Exception | None] = [None] * size
        self._left = size
        self._written = written

    def set(self, begin: int, results: Sequence[Outcome | Exception]) -> None:
        self._results[begin : begin + len(results)] = results
        self._left -= len(results)
        if not self._left:
            _call(self._written, [result for result in self._results if result is not None])


class Independent(Unit):
    """A unit with independent transitions of one caller, or with a part of them. `begin` is the position of the first
    one among all transitions of the caller."""

    __slots__ = ("begin", "each")

    def __init__(self, transitions: Sequence[Transition], each: Each, begin: int) -> None:
        super().__init__(transitions)
        self.each = each
        self.begin = begin

    def parts(self) -> Iterator[Unit]:
        if (middle := len(self.transitions) // 2) > 0:
            yield Independent(self.transitions[:middle], self.each, self.begin)
            yield Independent(self.transitions[middle:], self.each, self.begin + middle)

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        self.each.set(self.begin, outcomes)

    def fail(self, error: Exception) -> None:
        self.each.set(self.begin, [error] * len(self.transitions))


class BestEffort(Unit):
    """A unit with one transition for which no caller waits."""

    __slots__ = ()

    _warned_at: ClassVar[float] = -math.inf

    def __init__(self, transition: Transition) -> None:
        super().__init__((transition,))

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        pass

    def fail(self, error: Exception) -> None:
        """Log a warning, at most every WARN_EVERY seconds. Failures repeat while the database cannot be reached, and
        the log may be on a disk that is full."""
        now = time.monotonic()
        if now >= BestEffort._warned_at + WARN_EVERY:
            BestEffort._warned_at = now
            log.warning("a best-effort %s was not written: %s", type(self.transitions[0]).__name__, error)


class Barrier(Unit):
    """A unit without transitions. It forms a batch by itself, and resolves when all units before it are done."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        super().__init__((), alone=True)
        self.future = future

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        self.resolve(())
