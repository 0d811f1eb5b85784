"""What waits in the journal: transitions that go into one batch together, and whoever waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from fairlead.domain.transitions import Adopt, Delete, Move, Prioritise, Progress, Start, Submit
from fairlead.errors import RequestError
from fairlead.store.port import Announce, Farewell, Outcome, Transition

log = logging.getLogger(__name__)


_WITH_JOB_ID = frozenset({Start, Move, Progress, Prioritise, Adopt, Delete})


def job_id_of(transition: Any) -> str | None:
    """Whose transition it is. None: of no job, or of those that a sweep will find."""
    kind = type(transition)
    if kind in _WITH_JOB_ID:
        job_id: str = transition.job_id
        return job_id
    return transition.job.id if kind is Submit else None


def subject_of(transition: Any) -> str | None:
    """Whose transitions must keep their order: a job's, or a process's, which is not to be announced after its
    farewell."""
    kind = type(transition)
    if kind is Announce:
        return f"process {transition.record.name}"
    return f"process {transition.name}" if kind is Farewell else job_id_of(transition)


def subjects_of(transitions: Sequence[Transition]) -> set[str]:
    if _WITH_JOB_ID.issuperset(map(type, transitions)):  # a worker's, by the hundred
        return {transition.job_id for transition in transitions}  # type: ignore[union-attr]
    return {subject for subject in map(subject_of, transitions) if subject is not None}


class Unit:
    """What goes into one batch, or waits as a whole. `subjects` are those of its transitions; `kind` is what all of
    them are, if it is one. `alone`: must be a batch of its own."""

    __slots__ = ("alone", "kind", "subjects", "transitions")

    def __init__(self, transitions: Sequence[Transition], *, alone: bool = False) -> None:
        kinds = set(map(type, transitions))
        self.transitions = transitions
        self.subjects: Collection[str] = subjects_of(transitions)
        self.kind: type | None = kinds.pop() if len(kinds) == 1 else None
        self.alone = alone

    def parts(self) -> Iterator[Unit]:
        """Smaller units that may be tried one after the other when this one fails."""
        return iter(())

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        raise NotImplementedError


class Single(Unit):
    """One transition and its caller. A caller that was cancelled meanwhile is simply not told."""

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


class Whole(Unit):
    """All or nothing. Alone if one of its submits could be refused by an error, since that undoes its whole batch."""

    __slots__ = ("future",)

    def __init__(self, transitions: Sequence[Transition], future: asyncio.Future[list[Outcome]]) -> None:
        super().__init__(transitions, alone=any(map(_may_be_turned_away, transitions)))
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


def _may_be_turned_away(transition: Transition) -> bool:
    return isinstance(transition, Submit) and (transition.idempotency_key is not None or transition.max_waiting > 0)


class Each:
    """The caller of several independent transitions: told once, when the last of them is done."""

    __slots__ = ("_left", "_results", "future")

    def __init__(self, size: int, future: asyncio.Future[list[Outcome | Exception]]) -> None:
        self._results: list[Outcome | Exception | None] = [None] * size
        self._left = size
        self.future = future

    def set(self, begin: int, results: Sequence[Outcome | Exception]) -> None:
        self._results[begin : begin + len(results)] = results
        self._left -= len(results)
        if not self._left and not self.future.done():
            self.future.set_result([result for result in self._results if result is not None])


class Several(Unit):
    """Independent transitions that came together, or some of them; `begin` is the place of the first."""

    __slots__ = ("begin", "each")

    def __init__(self, transitions: Sequence[Transition], each: Each, begin: int) -> None:
        super().__init__(transitions)
        self.each = each
        self.begin = begin

    def parts(self) -> Iterator[Unit]:
        if (middle := len(self.transitions) // 2) > 0:
            yield Several(self.transitions[:middle], self.each, self.begin)
            yield Several(self.transitions[middle:], self.each, self.begin + middle)

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        self.each.set(self.begin, outcomes)

    def fail(self, error: Exception) -> None:
        self.each.set(self.begin, [error] * len(self.transitions))


class Lazy(Unit):
    """Nobody waits."""

    __slots__ = ()

    def __init__(self, transition: Transition) -> None:
        super().__init__((transition,))

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        pass

    def fail(self, error: Exception) -> None:
        log.warning("a lazy %s was not written: %s", type(self.transitions[0]).__name__, error)


class Barrier(Unit):
    """Holds no transition. Alone, so it is reached only when all before it is done."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        super().__init__((), alone=True)
        self.future = future

    def resolve(self, outcomes: Sequence[Outcome | Exception]) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: Exception) -> None:
        self.resolve(())
