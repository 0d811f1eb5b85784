"""Writes down, minute by minute, what this process did for each service: the dashboard's history.

It reads what is counted anyway and writes only what changed, at most every few seconds; a process that does nothing
writes nothing. What is written is the whole of its minute so far, so writing it twice is harmless.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from operator import sub

from fairlead.domain.activity import KEPT_MINUTES, Activity, minute_of
from fairlead.runtime.observations import SECONDS, Observations, Used
from fairlead.store.board import NoteActivity
from fairlead.store.journal import Journal
from fairlead.store.port import Store

EVERY = 3.0
MOST_USERS = 100
"""Of one service and minute: those that had most of its slots."""


@dataclass(slots=True)
class _Seen:
    """What the counters said when they were last read."""

    done: dict[str, int] = field(default_factory=dict)
    failures: dict[tuple[str, str], int] = field(default_factory=dict)
    waits: dict[tuple[str, str], list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Note:
    finished: int = 0
    failed: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    codes: Counter[str] = field(default_factory=Counter)
    used: dict[str, Used] = field(default_factory=dict)

    def add(self, more: _Note) -> None:
        self.finished += more.finished
        self.failed += more.failed
        self.waits = [before + new for before, new in zip(self.waits, more.waits, strict=True)]
        self.codes.update(more.codes)
        for user_id, used in more.used.items():
            self.used.setdefault(user_id, Used()).add(used)

    def written(self, about: Activity) -> Activity:
        most = sorted(self.used.items(), key=lambda item: -item[1].seconds)[:MOST_USERS]
        return replace(
            about,
            finished=self.finished,
            failed=self.failed,
            waits=tuple(self.waits),
            codes=dict(self.codes),
            used={user_id: (used.calls, round(used.seconds, 3)) for user_id, used in most},
        )


class ActivityLoop:
    name = "activity"

    def __init__(self, process: str, observations: Observations, store: Store, journal: Journal) -> None:
        self._process = process
        self._observations = observations
        self._store = store
        self._journal = journal
        self._seen = _Seen()
        self._minute = 0
        # While the truth is away, what is new waits here, and what is to be written in `_due`.
        self._new: dict[str, _Note] = {}
        self._notes: dict[str, _Note] = {}
        self._due: dict[tuple[int, str], Activity] = {}

    async def tick(self, now: float) -> float:
        for service, more in self._read().items():
            self._new.setdefault(service, _Note()).add(more)
        if self._new or self._due:
            minute = minute_of(await self._store.now())
            if minute != self._minute:
                # What came since the last look is counted to the minute in which it is seen.
                self._minute, self._notes = minute, {}
            for service, more in self._new.items():
                note = self._notes.setdefault(service, _Note())
                note.add(more)
                self._due[minute, service] = note.written(Activity(self._process, minute, service))
            self._new = {}
            await self._journal.write(NoteActivity(self._process, tuple(self._due.values()), minute - KEPT_MINUTES))
            self._due.clear()
        return now + EVERY

    def _read(self) -> dict[str, _Note]:
        """By service, what happened since the last look."""
        found: dict[str, _Note] = {}
        seen, observed = self._seen, self._observations
        for service, done in observed.done().items():
            if new := done - seen.done.get(service, 0):
                found.setdefault(service, _Note()).finished += new
                seen.done[service] = done
        for (service, code), failed in observed.failures.items():
            if new := failed - seen.failures.get((service, code), 0):
                note = found.setdefault(service, _Note())
                note.failed += new
                note.codes[code] += new
                seen.failures[service, code] = failed
        for (service, band), waits in observed.waits.items():
            before = seen.waits.get((service, band))
            if waits.counts != before:
                note = found.setdefault(service, _Note())
                new_waits = map(sub, waits.counts, before or [0] * len(waits.counts))
                note.waits = [had + more for had, more in zip(note.waits, new_waits, strict=True)]
                seen.waits[service, band] = list(waits.counts)
        for service, users in observed.take_used().items():
            found.setdefault(service, _Note()).used |= users
        return found
