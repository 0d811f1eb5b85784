"""Delivers the chunks that steps emit: to the readers of the output, here and in other processes, and to the log that
late readers read.

The first chunk of a step is delivered at once. More chunks follow at most every `FLUSH_EVERY` seconds, those of all
steps in one call to the log. Nothing here holds up a handler. Chunks that the log does not accept are sent again while
the step runs, since its worker has them anyway; after that they are dropped, because the step's result is in the
database.

A chunk above `artifacts.threshold` is saved as a file first, and the log and the readers get the name of the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from fairlead.artifacts.files import Files
from fairlead.artifacts.values import save_value
from fairlead.dispatch.output_log import KEEP_S, Appended, OutputLog
from fairlead.domain.job import Job
from fairlead.domain.output import Entry
from fairlead.engine.events import Hub
from fairlead.errors import FairleadError
from fairlead.executors.port import LONG_CHUNK, CallOutput, OutputTooLarge
from fairlead.outage import Outage

log = logging.getLogger("fairlead.output")

FLUSH_EVERY = 0.01
RETRY_EVERY = 0.5
MOST_CHUNKS, MOST_CHARACTERS = 1000, LONG_CHUNK
"""The size of one entry. A chunk of more characters is an entry of its own."""
MOST_ENTRIES = 200
"""The number of entries in one call to the log."""
MOST_REPEATS = 3
CLOSE_WITHIN = 1.0


class RunOutput:
    """The output of one run of a step, and how much of it was delivered."""

    __slots__ = ("_names", "appended", "call", "published", "repeats", "saved", "saving", "user_id")

    def __init__(self, job: Job, call: CallOutput) -> None:
        self._names = (job.id, job.run, job.step, job.attempt)
        self.call = call
        self.user_id = job.user_id
        self.saving: asyncio.Task[None] | None = None
        self.saved: dict[int, str] = {}
        """The files of large chunks, by the numbers of the chunks."""
        self.published = 0
        """The number of chunks that were sent to readers."""
        self.appended = 0
        """The number of chunks that the log has."""
        self.repeats = 0
        """How often all chunks were appended again, because the log had lost them."""

    def unpublished(self) -> Iterator[Entry]:
        start = self.published
        chunks = self.call.read(start)
        self.published = start + len(chunks)
        return self._entries(start, chunks)

    def unappended(self) -> Iterator[Entry]:
        return self._entries(self.appended, self.call.chunks[self.appended : self.published])

    def took(self, entry: Entry, reply: Appended) -> bool:
        """Note the log's reply to an entry. Returns False if the entry must be appended again."""
        if reply is Appended.KEPT:
            self.appended = max(self.appended, entry.last + 1)
            return True
        if reply is Appended.FAILED:
            return self.call.closed
        self.appended = 0
        self.repeats += 1
        return self.repeats > MOST_REPEATS

    def _entries(self, start: int, unsent: Sequence[str]) -> Iterator[Entry]:
        """Split chunks into entries of limited size."""
        chunks: list[str] = []
        size = 0
        for chunk in unsent:
            if chunks and (len(chunks) == MOST_CHUNKS or size + len(chunk) > MOST_CHARACTERS):
                yield Entry(*self._names, start, chunks)
                start, chunks, size = start + len(chunks), [], 0
            chunks.append(chunk)
            size += len(chunk)
        if chunks:
            yield Entry(*self._names, start, chunks)


class OutputWriter:
    """Must be created in the thread of the event loop."""

    def __init__(self, output_log: OutputLog, hub: Hub, files: Files | None = None) -> None:
        self.log = output_log
        self._files = files
        self._largest = inf if files is None else max(MOST_CHARACTERS, files.config.threshold)
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._unpublished: dict[RunOutput, None] = {}
        self._unappended: dict[RunOutput, None] = {}
        self._saving: set[RunOutput] = set()
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        """When the timer flushes."""
        self._flushed_at = -FLUSH_EVERY
        self._appending: asyncio.Task[None] | None = None
        self._outage = Outage(log, "keeping the output of steps (their results are not affected)")

    def check_long(self, chunk_json: str) -> None:
        """Raises OutputTooLarge if a chunk has to be saved as a file and is larger than files may be. May be called
        from any thread."""
        if self._files is not None and len(chunk_json) > self._largest:
            size, most = len(chunk_json.encode()), self._files.config.max_file
            if size > most:
                raise OutputTooLarge(size, most, "artifacts.max_file")

    def emitted(self, output: RunOutput) -> None:
        """Deliver the new chunks of this output soon. May be called from any thread."""
        if threading.get_ident() == self._thread:
            self._deliver_soon(output)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._deliver_soon, output)

    def flush(self) -> None:
        """Deliver what is waiting now: a step has ended, and its end must not overtake its last chunks."""
        if self._timer is not None:
            self._timer.cancel()
            self._flush()

    async def close(self) -> None:
        self.flush()
        for output in list(self._saving):
            if output.saving is not None:
                output.saving.cancel()
        if self._appending is not None:
            _, late = await asyncio.wait([self._appending], timeout=CLOSE_WITHIN)
            for task in late:
                task.cancel()

    def _deliver_soon(self, output: RunOutput) -> None:
        self._unpublished[output] = None
        now = self._loop.time()
        due = max(now, self._flushed_at + FLUSH_EVERY) if output.published else now
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._flush) if due > now else self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._timer, self._flushed_at = None, self._loop.time()
        outputs, self._unpublished = self._unpublished, {}
        for output in outputs:
            for entry in output.unpublished():
                if not self._is_large(entry):
                    self._hub.publish_output(entry)
        self._append_soon(outputs)

    def _append_soon(self, outputs: Mapping[RunOutput, None]) -> None:
        self._unappended |= outputs
        if self._appending is None:
            self._appending = self._loop.create_task(self._append(), name="fairlead-output")

    async def _append(self) -> None:
        """Append until the log has everything. While the log cannot be reached, try again at intervals."""
        try:
            while self._unappended:
                if not await self._append_once():
                    await asyncio.sleep(RETRY_EVERY)
        except Exception:
            log.exception("keeping the output of steps failed")
        finally:
            self._appending = None

    async def _append_once(self) -> bool:
        """Append the outputs that are waiting, in one call. Returns False if the log cannot be reached."""
        outputs, self._unappended = self._unappended, {}
        batch: list[tuple[RunOutput, Entry]] = []
        for output in outputs:
            for entry in output.unappended():
                if len(batch) == MOST_ENTRIES:
                    self._unappended[output] = None
                    break
                if self._is_large(entry) and entry.first not in output.saved:
                    self._save_soon(output, entry)
                    break
                batch.append((output, self._kept(output, entry)))
        if not batch:
            return True
        replies = await self.log.append([entry for _, entry in batch])
        again = set()
        for (output, entry), reply in zip(batch, replies, strict=True):
            if output not in again and not output.took(entry, reply):
                again.add(output)
            elif entry.stored is not None and reply is Appended.KEPT:
                self._hub.publish_output(entry)
        self._unappended |= dict.fromkeys(again)
        if Appended.FAILED in replies:
            self._outage.began(ConnectionError("the log cannot be reached"))
            return False
        self._outage.ended()
        return True

    # ------------------------------------------------------------ large chunks

    def _is_large(self, entry: Entry) -> bool:
        return len(entry.chunks[0]) > self._largest

    def _kept(self, output: RunOutput, entry: Entry) -> Entry:
        """The entry as the log keeps it."""
        return replace(entry, chunks=[""], stored=output.saved[entry.first]) if self._is_large(entry) else entry

    def _save_soon(self, output: RunOutput, entry: Entry) -> None:
        """Save a large chunk, and then go on with this output. Others do not wait for it."""
        if output.saving is None:
            output.saving = self._loop.create_task(self._save(output, entry), name="fairlead-output-chunk")
            self._saving.add(output)

    async def _save(self, output: RunOutput, entry: Entry) -> None:
        assert self._files is not None
        keep_for = KEEP_S - self._files.config.orphan_after
        try:
            file = await save_value(self._files, output.user_id, entry.job_id, entry.chunks[0], keep_for)
            output.saved[entry.first] = file.id
        except FairleadError as error:
            self._outage.began(error)
            await asyncio.sleep(RETRY_EVERY)
        finally:
            output.saving = None
            self._saving.discard(output)
        if entry.first in output.saved or not output.call.closed:
            self._append_soon({output: None})
