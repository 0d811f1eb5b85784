"""Moves file batches on: validates their files, submits their lines in parts, and writes their results (docs/adr/0041).

Every change of a batch is refused if another process changed it first, and a part is submitted under an idempotency
key. So a leader may be killed at any point, or act for a moment beside its successor.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any
from uuid import UUID

from fairlead import failpoints
from fairlead.app.batch_submission import BatchSubmission
from fairlead.app.batches import Batches
from fairlead.app.file_batch_input import Validator, deadline_of, longest_line, read_lines
from fairlead.app.file_batch_output import OutputWriter, Written
from fairlead.app.models import ModelCatalog
from fairlead.app.runtime import Runtime
from fairlead.domain.file_batch import FileBatch, FileBatchStatus
from fairlead.domain.file_batch_lines import request_of
from fairlead.domain.job import FINISHED, JobStatus
from fairlead.domain.webhook_shapes import STATUS_NUMBERS
from fairlead.errors import (
    BudgetSpent,
    IdempotencyMismatch,
    NotFound,
    TooManyWaiting,
    Unavailable,
    UnknownModel,
    WrongState,
)
from fairlead.pacing import DutyCycle
from fairlead.store.file_batches import ChangeFileBatch, PruneFileBatches
from fairlead.store.files import CompleteFile
from fairlead.store.port import Done, Erase

log = logging.getLogger("fairlead.batches")

LOOK_EVERY = 2.0
MOVING, COUNTING = DutyCycle(0.4, longest=1.0), DutyCycle(0.1, every=0.5, longest=5.0)
"""The pauses after ticks that moved a batch on, and after others. A part is one commit, which delays all others."""
AT_A_TIME = 1000
PART_LINES, PART_BYTES = 100, 256 * 1024
"""The size of a part. Its commit takes some milliseconds, in which those of other requests wait."""
MOST_QUEUED = 5000
"""The number of lines of a batch that are submitted and have not ended. The rest waits in its file."""
PRUNE_EVERY, PRUNE_LIMIT = 3600.0, 1000
LONGEST_PAUSE = 60.0
NO_PART = str(UUID(int=0))
"""The id of no batch: a part that was removed. Its lines are in no file."""


@dataclass
class _Progress:
    """What this process knows of the parts of a batch. `ended` has the completed and failed lines of ended parts,
    `counts` those of all parts when they were counted last. `most` is the number of lines that the next part may
    have."""

    parts: list[str]
    ended: dict[str, tuple[int, int]]
    counts: tuple[int, int] = (0, 0)
    count_at: float = 0.0
    most: int = PART_LINES
    failures: int = 0
    retry_at: float = 0.0


class FileBatchLoop:
    """Counts the batches it looked at (`scanned`), and the changes that it made to them (`queued`)."""

    name = "file_batches"

    def __init__(self, runtime: Runtime, batches: Batches, models: ModelCatalog) -> None:
        self._runtime = runtime
        self._batches = batches
        self._models = models
        self._output = OutputWriter(runtime, batches)
        self._progress: dict[str, _Progress] = {}
        self._prune_at = 0.0
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        store = self._runtime.store
        open_batches = await store.open_file_batches(AT_A_TIME)
        self.scanned += len(open_batches)
        known = {batch.id: self._progress.get(batch.id) or _Progress([], {}) for batch in open_batches}
        self._progress = known
        again, unavailable, began = False, None, perf_counter()
        for batch in open_batches:
            try:
                again = await self._try(batch, known[batch.id]) or again
            except Unavailable as error:
                unavailable = error
        if unavailable is not None:
            raise unavailable
        if not 0 <= now - self._prune_at < PRUNE_EVERY:
            self._prune_at = now
            retention = self._runtime.config.retention
            before = now - max(retention.keep_finished, retention.keep_failed)
            await self._runtime.group_commit.write(PruneFileBatches(before, PRUNE_LIMIT))
        if not open_batches:
            return now + LOOK_EVERY
        took = perf_counter() - began
        return now + took + (MOVING if again else COUNTING).pause(took)

    async def _try(self, batch: FileBatch, progress: _Progress) -> bool:
        """Move a batch on. One that cannot be moved must not hold up the others, and is tried again later. Returns
        whether there is more to do at once."""
        timer = asyncio.get_running_loop().time
        if timer() < progress.retry_at:
            return False
        try:
            moved = await self._move(batch, progress)
            progress.failures = 0
            return moved
        except Unavailable:
            raise
        except Exception:
            progress.failures += 1
            pause = min(LONGEST_PAUSE, 2.0**progress.failures)
            progress.retry_at = timer() + pause
            log.exception("%s cannot be moved on; trying again in %g s", batch.id, pause)
            return False

    async def _move(self, batch: FileBatch, progress: _Progress) -> bool:
        match batch.status:
            case FileBatchStatus.VALIDATING:
                return await self._validate(batch)
            case FileBatchStatus.IN_PROGRESS:
                return await self._run(batch, progress)
            case FileBatchStatus.FINALIZING:
                return await self._finish(batch, progress)
            case FileBatchStatus.CANCELLING:
                return await self._cancel(batch, progress)
            case _:
                return await self._erase(batch, progress)

    async def _change(self, batch: FileBatch, **options: Any) -> bool:
        """Store a changed batch. Returns False if another process has changed it."""
        outcome = await self._runtime.group_commit.write(ChangeFileBatch(batch, **options))
        self.queued += isinstance(outcome, Done)
        return isinstance(outcome, Done)

    # ------------------------------------------------------------ validating

    async def _validate(self, batch: FileBatch) -> bool:
        runtime = self._runtime
        validator = Validator(runtime.config, self._models, runtime.files)
        now = min(runtime.clock.now(), batch.expires_at - 1.0)
        found = await validator.validate(batch, now)
        now = runtime.clock.now()
        failpoints.passed(failpoints.BATCH_VALIDATED)
        if found.errors:
            failed = batch.moved(FileBatchStatus.FAILED, now, ended_at=now, errors=tuple(found.errors))
            await self._change(failed, release=True, about=_about(failed, now))
            return False
        running = batch.moved(FileBatchStatus.IN_PROGRESS, now, total=found.lines, model=found.model)
        await self._change(running)
        return True

    # ------------------------------------------------------------ in progress

    async def _run(self, batch: FileBatch, progress: _Progress) -> bool:
        """Submit the next part, if there is one, and count what has ended."""
        now = self._runtime.clock.now()
        due = batch.submitted < batch.total and now < batch.expires_at - 1.0
        all_ended = await self._count_some(batch, progress) if due else await self._count(batch, progress)
        completed, failed = progress.counts
        if due and batch.submitted - completed - failed < MOST_QUEUED:
            submitted = await self._submit(batch, progress)
            if submitted is not None:
                await self._change(replace(submitted, completed=completed, failed=failed))
                failpoints.passed(failpoints.BATCH_PART_RECORDED)
                return True
        if not due and all_ended and (batch.submitted == batch.total or now >= batch.expires_at):
            await self._change(batch.moved(FileBatchStatus.FINALIZING, now, completed=completed, failed=failed))
            failpoints.passed(failpoints.BATCH_FINALIZING)
            return True
        if (completed, failed) != (batch.completed, batch.failed):
            await self._change(replace(batch, completed=completed, failed=failed))
        return False

    async def _submit(self, batch: FileBatch, progress: _Progress) -> FileBatch | None:
        """Submit one part. Returns the batch with it; None if its user has too many jobs waiting or has spent a budget,
        or if no service has the model now."""
        part = batch.parts
        key = batch.part_key(part)
        if await self._runtime.store.batch_of_key(batch.user_id, key) is None:
            try:
                service = await self._models.service_for(batch.model)
                items, offset = await self._items(batch, service, progress.most)
                submission = BatchSubmission(
                    items,
                    batch.user_id,
                    f"{batch.id} part {part + 1}",
                    {"file_batch": batch.id, "part": part, "offset": offset},
                )
                await self._batches.accept(submission, idempotency_key=key, lowers_only=batch.lowers_only, part=True)
                progress.most = min(PART_LINES, 2 * progress.most)
            except (BudgetSpent, TooManyWaiting, UnknownModel) as error:
                progress.most = max(1, progress.most // 2)  # fewer lines may be allowed
                log.debug("%s waits: %s", batch.id, error)
                return None
            except IdempotencyMismatch:
                pass  # another leader has submitted this part, with other lines
            failpoints.passed(failpoints.BATCH_PART_SUBMITTED)
        view = await self._batches.get(await self._part(batch, part))
        offset = int((view.metadata or {})["offset"])
        return replace(batch, parts=part + 1, submitted=batch.submitted + view.total, offset=offset)

    async def _items(self, batch: FileBatch, service: str, most: int) -> tuple[list[dict[str, Any]], int]:
        """The items of the next part, and where the part after it begins in the file."""
        runtime, config = self._runtime, self._runtime.config
        file = await runtime.files.get_complete(batch.input_file_id)
        server = config.server
        most = min(most, PART_LINES, server.max_bulk, (server.max_waiting_per_user + 1) // 2 or PART_LINES)
        deadline = deadline_of(batch)
        items: list[dict[str, Any]] = []
        size, offset = 0, batch.offset
        async with aclosing(read_lines(runtime.files, file, longest_line(config), batch.offset)) as lines:
            async for line in lines:
                request = request_of(line.text, batch.endpoint)
                items.append(
                    {
                        "custom_id": request.custom_id,
                        "feature_name": service,
                        "input_data": request.as_input(batch.endpoint),
                        "priority": request.priority,
                        "deadline": deadline,
                    }
                )
                size, offset = size + len(line.text), line.end
                if len(items) >= most or size >= PART_BYTES:
                    break
        return items, offset

    async def _part(self, batch: FileBatch, part: int) -> str:
        """The id of a part that was submitted."""
        found = await self._runtime.store.batch_of_key(batch.user_id, batch.part_key(part))
        if found is None:
            raise NotFound(f"{batch.id} has no part {part}")
        return found[0]

    async def _parts(self, batch: FileBatch, progress: _Progress) -> list[str]:
        while len(progress.parts) < batch.parts:
            try:
                part = await self._part(batch, len(progress.parts))
            except NotFound:  # removed by retention, which is shorter than it was
                part = NO_PART
            progress.parts.append(part)
        return progress.parts

    async def _count_some(self, batch: FileBatch, progress: _Progress) -> bool:
        """Like `_count`, but at intervals: several parts may be submitted in one."""
        began = perf_counter()
        if began < progress.count_at:
            return False
        all_ended = await self._count(batch, progress)
        progress.count_at = began + COUNTING.pause(perf_counter() - began)
        return all_ended

    async def _count(self, batch: FileBatch, progress: _Progress) -> bool:
        """Count the completed and the failed lines. Returns whether all lines of all parts have ended."""
        completed = failed = 0
        all_ended = True
        for part in await self._parts(batch, progress):
            counts = progress.ended.get(part)
            if counts is None:
                state = await self._runtime.store.get_batch(part)
                if state is None:
                    continue
                done = state.counts.get(JobStatus.COMPLETED, 0)
                counts = done, sum(state.counts.get(status, 0) for status in FINISHED) + state.removed - done
                if state.open:
                    all_ended = False
                else:
                    progress.ended[part] = counts
            completed, failed = completed + counts[0], failed + counts[1]
        progress.counts = completed, failed
        return all_ended

    # ------------------------------------------------------------ the end

    async def _cancel(self, batch: FileBatch, progress: _Progress) -> bool:
        if await self._runtime.store.batch_of_key(batch.user_id, batch.part_key(batch.parts)) is not None:
            # A part that was submitted while the batch was cancelled.
            submitted = await self._submit(batch, progress)
            return submitted is not None and await self._change(submitted)
        for part in await self._parts(batch, progress):
            if part not in progress.ended:
                with suppress(WrongState, NotFound):
                    await self._batches.cancel(part)
        return await self._finish(batch, progress) if await self._count(batch, progress) else False

    async def _finish(self, batch: FileBatch, progress: _Progress) -> bool:
        """Write the files, and end the batch with the commit that completes them."""
        runtime = self._runtime
        written = await self._output.write(batch, await self._parts(batch, progress))
        failpoints.passed(failpoints.BATCH_FILES_WRITTEN)
        now = runtime.clock.now()
        keeps = runtime.config.openai.keep != "nothing"
        ended = _ended(batch, written, now, ended_at=now if keeps else None)
        completes = [CompleteFile(file, file.expires_at) for file in written.files]
        change = ChangeFileBatch(ended, release=True, about=_about(ended, now))
        *_, outcome = await runtime.group_commit.write_all([*completes, change])
        failpoints.passed(failpoints.BATCH_FINISHED)
        if isinstance(outcome, Done):
            self.queued += 1
            return not keeps
        for file in written.files:  # another process has ended the batch
            with suppress(NotFound):
                await runtime.files.delete(file.id)
        return False

    async def _erase(self, batch: FileBatch, progress: _Progress) -> bool:
        """Erase what the jobs of an ended batch hold of its requests and answers (`openai.keep`)."""
        store, after = self._runtime.store, -1
        for part in await self._parts(batch, progress):
            after = -1
            while items := await store.batch_items(part, after=after, limit=AT_A_TIME):
                after = items[-1].number
                await self._runtime.group_commit.write(Erase(tuple(item.job_id for item in items)))
        await self._change(replace(batch, ended_at=self._runtime.clock.now()))
        return False


def _ended(batch: FileBatch, written: Written, now: float, ended_at: float | None) -> FileBatch:
    status = FileBatchStatus.COMPLETED
    if batch.status is FileBatchStatus.CANCELLING:
        status = FileBatchStatus.CANCELLED
    elif written.expired:
        status = FileBatchStatus.EXPIRED
    return batch.moved(
        status,
        now,
        ended_at=ended_at,
        completed=written.completed,
        failed=written.failed,
        output_file_id=None if written.output is None else written.output.id,
        error_file_id=None if written.errors is None else written.errors.id,
        usage=written.usage or None,
    )


def _about(batch: FileBatch, now: float) -> dict[str, Any]:
    """What the webhooks of the user receive at the end."""
    counts = ((JobStatus.COMPLETED, batch.completed), (JobStatus.FAILED, batch.failed))
    return {
        "status": batch.status.value,
        "counts": [[STATUS_NUMBERS[status], count] for status, count in counts],
        "finished_at": now,
    }
