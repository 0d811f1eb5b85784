"""Applying moves, those of a batch and those of a sweep alike.

One statement for all that complete their job, one for all that tell the line, one for the others, and one for each kind
of record that they insert beside the job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fairlead.domain.transitions import Move
from fairlead.store.port import LineChange
from fairlead.store.postgres import encode
from fairlead.store.rows import begins_round, job_of

Ask = Callable[..., Awaitable[list[Any]]]
"""Runs the statement of that name with these parameters."""


class Moves:
    """Within an open transaction. `changes` are the outbox rows that were written so far."""

    def __init__(self, ask: Ask, *, origin: str, now: int) -> None:
        self._ask = ask
        self._origin = origin
        self._now = now
        self.changes: list[LineChange] = []

    async def apply(self, moves: Sequence[Move]) -> set[int]:
        """The places of those that changed something; the jobs of the others had moved on."""
        completing, telling, quiet = [], [], []
        # Rows are locked in the order of the arrays: by job id, in every process.
        for place in sorted(range(len(moves)), key=lambda place: moves[place].job_id):
            move = moves[place]
            if encode.completes(move):
                completing.append(place)
            elif move.tells_line:
                telling.append(place)
            else:
                quiet.append(place)
        applied: set[int] = set()
        if completing:
            rows = await self._ask("complete", *encode.complete_columns(moves[place] for place in completing))
            applied.update(completing[n - 1] for (n,) in rows)
        if quiet:
            rows = await self._ask("move", *encode.move_columns(moves[place] for place in quiet))
            applied.update(quiet[n - 1] for n, _ in rows)
            await self._insert([(moves[quiet[n - 1]], seq) for n, seq in rows])
        if telling:
            applied.update([telling[n] for n in await self._tell([moves[place] for place in telling])])
        return applied

    async def _tell(self, moves: Sequence[Move]) -> list[int]:
        if reviving := [move.job_id for move in moves if begins_round(move)]:
            await self._ask("spill", reviving)
            await self._ask("unspill", reviving)
        rows = await self._ask("move_and_tell", *encode.move_columns(moves), self._origin, self._now)
        if reviving:
            await self._ask("reopen_batches", reviving)
        moved = []
        for n, outbox_id, *row in rows:
            job = job_of(row)
            self.changes.append(LineChange(outbox_id, job.id, job))
            moved.append((moves[n - 1], job.seq))
        await self._insert(moved)
        return [n - 1 for n, *_ in rows]

    async def _insert(self, moved: Sequence[tuple[Move, int]]) -> None:
        """(move, seq) of those that were applied: what some of them insert beside the job."""
        results, failed, holds = [], [], []
        for move, seq in moved:
            if move.result is not None:
                results.append((seq, move.result))
            if move.failed is not None:
                failed.append((seq, move.run, move.failed))
            if move.hold is not None:
                holds.append((move.run, move.hold))
        if results:
            await self._ask("result", *encode.result_columns(results))
        if failed:
            await self._ask("failed", *encode.attempt_columns(failed))
        if holds:
            await self._ask("hold", *encode.hold_columns(holds))
