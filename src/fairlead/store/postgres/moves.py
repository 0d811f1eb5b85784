"""Applies moves, from a batch or from a sweep.

There is one statement for moves that complete their job, one for moves with an outbox row, one for all other moves, and
one for each kind of record that moves insert: results, attempts, holds and ledger rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.domain.prices import Prices
from fairlead.domain.transitions import Move
from fairlead.store.files import check_found, use_columns
from fairlead.store.port import OutboxEntry
from fairlead.store.postgres import encode
from fairlead.store.postgres.budgets import CommitBudgets
from fairlead.store.postgres.queries import Ask as Ask
from fairlead.store.postgres.webhooks import event_columns
from fairlead.store.rows import begins_round, job_of
from fairlead.store.webhooks import events_of


class Moves:
    """Applies moves within an open transaction. `changes` holds the outbox rows written so far. `budgets` is None if
    none are configured."""

    def __init__(self, ask: Ask, *, origin: str, now: int, prices: Prices, budgets: CommitBudgets | None) -> None:
        self._ask = ask
        self._origin = origin
        self._now = now
        self._prices = prices
        self._budgets = budgets
        self.changes: list[OutboxEntry] = []

    async def apply(self, moves: Sequence[Move]) -> set[int]:
        """Apply the moves and return the indexes of those that took effect. The other moves changed nothing, because
        their jobs had changed."""
        completing, relayed, quiet = [], [], []
        # Rows are locked in the order of the arrays, so every process sorts its arrays by job id.
        for index in sorted(range(len(moves)), key=lambda index: moves[index].job_id):
            move = moves[index]
            if encode.completes(move):
                completing.append(index)
            elif move.tells_line:
                relayed.append(index)
            else:
                quiet.append(index)
        applied: set[int] = set()
        if completing:
            ended = encode.complete_columns([moves[index] for index in completing], self._prices)
            rows = await self._ask("complete", *ended)
            applied.update(completing[n - 1] for (n,) in rows)
        if quiet:
            rows = await self._ask("move", *encode.move_columns(moves[index] for index in quiet))
            applied.update(quiet[n - 1] for n, _ in rows)
            await self._insert([(moves[quiet[n - 1]], seq) for n, seq in rows])
        if relayed:
            applied.update([relayed[n] for n in await self._tell([moves[index] for index in relayed])])
        await self._use_files([moves[index] for index in applied])
        if self._budgets is not None:
            await self._budgets.moved([moves[index] for index in sorted(applied)])
        hooked = [index for index in applied if moves[index].webhook is not None]
        if hooked and (events := events_of(moves[index] for index in sorted(hooked))):
            await self._ask("record_events", *event_columns(events), self._now)
        return applied

    async def _use_files(self, moves: Sequence[Move]) -> None:
        uses = [
            (move.job_id, file_id)
            for move in moves
            if move.result is not None and move.result.files
            for file_id in move.result.files
        ]
        if uses:
            check_found(await self._ask("use_files", *use_columns(uses)), uses)

    async def _tell(self, moves: Sequence[Move]) -> list[int]:
        if reviving := [move.job_id for move in moves if begins_round(move)]:
            await self._ask("spill", reviving)
            await self._ask("unspill", reviving)
        rows = await self._ask("move_with_outbox", *encode.move_columns(moves), self._origin, self._now)
        if reviving:
            await self._ask("reopen_batches", reviving)
        moved = []
        for n, outbox_id, *row in rows:
            job = job_of(row)
            self.changes.append(OutboxEntry(outbox_id, job.id, job))
            moved.append((moves[n - 1], job.seq))
        await self._insert(moved)
        return [n - 1 for n, *_ in rows]

    async def _insert(self, moved: Sequence[tuple[Move, int]]) -> None:
        """Insert the results, attempts, holds and ledger rows of the applied moves, given as (move, seq)."""
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
        if (calls := encode.ledger_columns([move for move, _ in moved], self._prices)) is not None:
            await self._ask("ledger", *calls)
