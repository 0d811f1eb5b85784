"""`app.file_batches`: create, read and cancel batches whose requests are the lines of a file. A loop of the leader does
the work (`file_batch_loop.py`, docs/adr/0041)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uuid_utils import uuid7

from fairlead import failpoints
from fairlead.app.batches import Batches
from fairlead.app.file_batch_loop import AT_A_TIME, FileBatchLoop
from fairlead.app.models import ModelCatalog, mean_duration
from fairlead.app.runtime import Runtime
from fairlead.domain import file_batch as domain
from fairlead.domain.file_batch import FileBatch, FileBatchStatus
from fairlead.domain.file_batch_lines import BadLine, request_of
from fairlead.domain.files import File
from fairlead.errors import (
    IdempotencyMismatch,
    InvalidInput,
    NotFound,
    TooManyWaiting,
    Unavailable,
    UnknownModel,
    WrongState,
)
from fairlead.store.file_batches import ChangeFileBatch, CreateFileBatch
from fairlead.store.port import Done

BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
TRIES = 20
MOST_OPEN = 100
"""The number of file batches of one user that have not ended."""
JOINED_WITHIN_S = 300.0
"""How long after its creation a batch is the answer to a retry of the request that created it."""
SAMPLE = 256 * 1024
"""How many bytes of the input file are read to estimate the number of its lines."""


@dataclass(frozen=True, slots=True)
class NewFileBatch:
    """What a client asks for. `retried`: it may have sent the request before; `key` is its idempotency key."""

    user_id: str | None
    input_file_id: str
    endpoint: str
    window: str
    metadata: Mapping[str, str] | None = None
    keep_output_for: float | None = None
    lowers_only: bool = False
    retried: bool = False
    key: str | None = None

    def asks_for(self, batch: FileBatch) -> bool:
        """Whether this request, sent before, may have created the batch."""
        wanted = (self.input_file_id, self.endpoint, self.window, self.metadata, self.keep_output_for)
        return wanted == (batch.input_file_id, batch.endpoint, batch.window, batch.metadata, batch.keep_output_for)


class FileBatches:
    def __init__(self, runtime: Runtime, batches: Batches, models: ModelCatalog) -> None:
        self._runtime = runtime
        self._models = models
        self._creating = asyncio.Lock()
        runtime.leader_loops.append(FileBatchLoop(runtime, batches, models))

    async def create(self, new: NewFileBatch) -> FileBatch:
        """Store a batch. Its file is validated later."""
        file = await self._input(new)
        now = self._runtime.clock.now()
        expected_at = await self._expected(file, new.endpoint, now)
        async with self._creating:  # a retry may arrive while its first request is still here
            return await self._known(new, file.user_id, now) or await self._created(new, file, now, expected_at)

    async def _created(self, new: NewFileBatch, file: File, now: float, expected_at: float | None) -> FileBatch:
        batch = FileBatch(
            f"batch_{uuid7().hex}",
            file.user_id,
            new.endpoint,
            file.id,
            new.window,
            now,
            now + domain.WINDOWS[new.window],
            metadata=new.metadata,
            lowers_only=new.lowers_only,
            keep_output_for=new.keep_output_for,
            request_key=new.key,
            expected_at=expected_at,
        )
        if not isinstance(await self._runtime.group_commit.write(CreateFileBatch(batch)), Done):
            if (known := await self._of_key(new, file.user_id)) is not None:
                return known  # another gateway got the same request at the same time
            raise InvalidInput(f"there is no file {file.id}", pointer="/input_file_id")
        failpoints.passed(failpoints.BATCH_CREATED)
        self._wake()
        return batch

    async def _input(self, new: NewFileBatch) -> File:
        keep = min(self._runtime.config.retention.keep_finished, self._runtime.config.retention.keep_failed)
        if domain.WINDOWS[new.window] > keep:
            raise InvalidInput(
                f"completion_window {new.window} is longer than finished jobs are kept, {keep:g} s (retention)",
                pointer="/completion_window",
            )
        try:
            file = await self._runtime.files.get_complete(new.input_file_id, new.user_id)
        except NotFound as error:
            raise InvalidInput(error.message, pointer="/input_file_id") from None
        if file.purpose != domain.BATCH:
            raise InvalidInput(f"the file's purpose is {file.purpose!r}, not 'batch'", pointer="/input_file_id")
        if (file.size or 0) > domain.LARGEST_FILE:
            raise InvalidInput(f"the file is over {domain.LARGEST_FILE} bytes", pointer="/input_file_id")
        return file

    async def _known(self, new: NewFileBatch, user_id: str, now: float) -> FileBatch | None:
        """The batch that an earlier request of the client created. Raises TooManyWaiting if the user has too many."""
        if (known := await self._of_key(new, user_id)) is not None:
            return known
        recent = await self._runtime.store.list_file_batches(user_id, before=None, limit=MOST_OPEN)
        for batch in recent if new.retried and new.key is None else ():
            if batch.request_key is None and new.asks_for(batch) and now - batch.created_at < JOINED_WITHIN_S:
                return batch
        # Those that have ended may be among the last ones.
        not_ended = await self._runtime.store.open_file_batches(AT_A_TIME) if len(recent) == MOST_OPEN else ()
        if sum(batch.user_id == user_id for batch in not_ended) >= MOST_OPEN:
            raise TooManyWaiting(f"user {user_id!r} has {MOST_OPEN} batches that have not ended", retry_after=60.0)
        return None

    async def _of_key(self, new: NewFileBatch, user_id: str) -> FileBatch | None:
        """The batch that was created with the same idempotency key. Raises IdempotencyMismatch if it was another
        request."""
        key = new.key
        known = None if key is None else await self._runtime.store.file_batch_of_key(user_id, key)
        if known is not None and not new.asks_for(known):
            raise IdempotencyMismatch("this Idempotency-Key was used with another body", details={"key": key})
        return known

    async def _expected(self, file: File, endpoint: str, now: float) -> float | None:
        """When the batch may end, if nothing else is submitted: from the length of its first lines and the calls of its
        service so far. None if that is not known."""
        sample = b""
        async for piece in self._runtime.files.read(file, 0, min(SAMPLE, file.size or 0)):
            sample += piece
        first, _, _ = sample.lstrip().partition(b"\n")
        whole = len(sample) == (file.size or 0)
        lines = max(1, len([line for line in sample.split(b"\n") if line.strip()]))
        number = lines if whole else min(domain.MOST_LINES, lines * (file.size or 0) // max(1, len(sample)))
        try:
            service = await self._models.service_for(request_of(first, endpoint).model)
            queues = await self._runtime.observer.queues([service])
        except (BadLine, UnknownModel, Unavailable):
            return None
        rules, snapshots = queues.rules.services.get(service), queues.services.get(service, ())
        mean = mean_duration(snapshots)
        if rules is None or rules.paused or mean is None:
            return None
        ahead = sum(each.in_use + sum(each.waiting.values()) for each in snapshots)
        return now + (ahead + number) / rules.limit * mean

    # ------------------------------------------------------------ read

    async def get(self, batch_id: str, user_id: str | None = None) -> FileBatch:
        """The batch with this id. Raises NotFound if there is none, or if `user_id` is given and is not its user."""
        known = BATCH_ID.fullmatch(batch_id) is not None
        batch = await self._runtime.store.get_file_batch(batch_id) if known else None
        if batch is None or (user_id is not None and batch.user_id != user_id):
            raise NotFound(f"there is no batch {batch_id[:50]}")
        return batch

    async def list(self, user_id: str | None, *, after: str | None, limit: int) -> list[FileBatch]:
        """The batches, newest first. `after` is the last id of the previous page."""
        if after is not None and not BATCH_ID.fullmatch(after):
            raise InvalidInput("after must be the id of a batch", pointer="/after")
        return await self._runtime.store.list_file_batches(user_id, before=after, limit=limit)

    # ------------------------------------------------------------ cancel

    async def cancel(self, batch_id: str, user_id: str | None = None) -> FileBatch:
        """Cancel a batch. Its requests end soon afterwards. Raises WrongState if it has ended."""
        for _ in range(TRIES):
            batch = await self.get(batch_id, user_id)
            if batch.status is FileBatchStatus.CANCELLING:
                return batch
            if batch.status.ended or batch.status is FileBatchStatus.FINALIZING:
                text = f"a batch that is {batch.status} cannot be cancelled"
                raise WrongState(text, details={"status": batch.status.value})
            changed = batch.moved(FileBatchStatus.CANCELLING, self._runtime.clock.now())
            if isinstance(await self._runtime.group_commit.write(ChangeFileBatch(changed)), Done):
                self._wake()
                return changed
        raise Unavailable(f"batch {batch_id} keeps changing; try again")

    def _wake(self) -> None:
        """Let the leader look at once, if it is in this process."""
        if self._runtime.node is not None:
            self._runtime.node.wake_loop(FileBatchLoop.name)


def check_metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or len(value) > domain.MOST_PAIRS:
        raise InvalidInput(f"metadata must be an object of at most {domain.MOST_PAIRS} pairs", pointer="/metadata")
    for name, text in value.items():
        if not isinstance(text, str) or len(name) > domain.LONGEST_NAME or len(text) > domain.LONGEST_VALUE:
            raise InvalidInput(
                f"metadata has names of at most {domain.LONGEST_NAME} and values of at most {domain.LONGEST_VALUE} "
                "characters, all of them text",
                pointer="/metadata",
            )
    return dict(value)
