"""`app.fronts`: the jobs of fronts, and which requests read each of them (`domain/front_readers.py`)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from weakref import WeakValueDictionary

from uuid_utils import uuid4, uuid7

from fairlead.app.jobs import Jobs
from fairlead.app.runtime import Runtime
from fairlead.artifacts.values import load_record
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.front_readers import NONE, Reader, Readers, key_prefix
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.openai import RETRIED_BY_CLIENTS, FrontAnswer
from fairlead.errors import FairleadError, IdempotencyMismatch, Unavailable
from fairlead.store.port import ChangeReader, Done

log = logging.getLogger("fairlead.openai")

Found = tuple[str, str, str]
"""The key, the id and the readers of a job."""
TRIES = 20
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""The pauses before each further attempt to leave a job."""
JOINED_WITHIN_S = 300.0
"""How long after its end a job can be joined, unless the client sends its own idempotency key. If nothing is kept, it
is `openai.grace` in both cases."""


@dataclass(slots=True)
class Reading:
    """A request (`reader`) that reads the job `job_id`, and cancels it when its client disconnects and no other request
    reads it. `readers` are those that were stored when the request was added to them. `job_id` is empty until the job
    of a new request is accepted."""

    job_id: str
    user_id: str
    key: str
    readers: Readers
    reader: Reader
    new: bool = False
    """The request submitted the job."""
    service: str = ""
    """The service of a new request."""


@fast_dataclass
class Identity:
    """What makes two requests of a user the same. `keyed`: the client has sent an idempotency key, so that all requests
    with it are the same; otherwise only those that the client marks as retries. `detached`: the job runs to its end,
    whether its client waits or not."""

    user_id: str
    fingerprint: str
    body: str
    keyed: bool = False
    detached: bool = False


class FrontRequests:
    def __init__(self, runtime: Runtime, jobs: Jobs) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._joining: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Requests with the same key join one after the other: each one changes the readers that the next one finds."""
        self._late: set[asyncio.Task[None]] = set()
        """Requests that could not leave at first."""

    async def reading_of(self, identity: Identity, *, retried: bool) -> Reading:
        """Become a reader of the newest job of the same request, if the client may have sent it before. If there is
        none, or if it was cancelled, ended too long ago, or has an answer after which clients send the request again to
        get another one, the reading is `new`: its job is submitted next, with the key of the reading as its idempotency
        key, and the readers in place of the hash of its body. Raises IdempotencyMismatch."""
        prefix, found = key_prefix(identity.fingerprint), None
        if retried:
            async with self._joining.setdefault(prefix, asyncio.Lock()):
                joined, found = await self._join(identity, prefix)
            if joined is not None:
                return joined
        reader = self._new_reader(identity)
        # Keys sort by their ends. Of requests with one idempotency key, which have found the same job, the database
        # accepts only the first.
        key = prefix + (_next_number("" if found is None else found[0], prefix) if identity.keyed else str(uuid7()))
        return Reading("", identity.user_id, key, Readers(identity.body, (reader,)), reader, new=True)

    async def _join(self, identity: Identity, prefix: str) -> tuple[Reading | None, Found | None]:
        """The reading of the newest job whose key has this prefix, if the request can join it, and that job."""
        for _ in range(TRIES):
            found = await self._runtime.store.newest_submit(identity.user_id, prefix)
            reading, again = (None, False) if found is None else await self._try_to_join(identity, found)
            if not again:
                break
        return reading, found

    async def _try_to_join(self, identity: Identity, found: Found) -> tuple[Reading | None, bool]:
        """The reading, and whether to try again because the readers changed at the same moment."""
        key, job_id, stored = found
        readers = Readers.of(stored)
        if readers is None or readers.all_left:
            return None, False
        if readers.body != identity.body:
            raise IdempotencyMismatch("this Idempotency-Key was used with another body", pointer="/Idempotency-Key")
        job = (await self._runtime.store.get_jobs([job_id])).get(job_id)
        if job is None or await self._is_to_be_repeated(job):
            return None, False
        if job.status is JobStatus.CANCELLED or self._is_too_old(job, identity):
            return None, False
        reader = self._new_reader(identity)
        reading = Reading(job_id, identity.user_id, key, readers.joined_by(reader), reader)
        return (reading, False) if await self._replace_readers(reading, readers, reading.readers) else (None, True)

    def _is_too_old(self, job: Job, identity: Identity) -> bool:
        """Whether the job ended too long ago to be joined."""
        if job.finished_at is None:
            return False
        config = self._runtime.config.openai
        if config.keep == "nothing":
            return self._runtime.clock.now() - job.finished_at > config.grace
        return not identity.keyed and self._runtime.clock.now() - job.finished_at > JOINED_WITHIN_S

    async def _is_to_be_repeated(self, job: Job) -> bool:
        record = await self._runtime.store.get(job.id) if job.status is JobStatus.COMPLETED else None
        record = None if record is None else await load_record(self._runtime.files, record)
        answer = FrontAnswer.of_result(record.result) if record is not None else None
        return answer is not None and answer.status in RETRIED_BY_CLIENTS

    async def leave(self, reading: Reading) -> None:
        """Cancel the job of a client that has disconnected, unless other requests read it, here or at another gateway.
        It may have ended. While the database is not available, this is tried again in the background."""
        if not await self._try_to_leave(reading):
            task = asyncio.create_task(self._leave_late(reading), name="fairlead-leave")
            self._late.add(task)
            task.add_done_callback(self._late.discard)

    async def close(self) -> None:
        """The leader cancels the jobs whose requests could not leave: this process is gone."""
        for task in self._late:
            task.cancel()

    async def _leave_late(self, reading: Reading) -> None:
        for pause in PAUSES_S:
            await asyncio.sleep(pause)
            if await self._try_to_leave(reading):
                return
        log.warning("job %s could not be cancelled after its client disconnected", reading.job_id)

    async def _try_to_leave(self, reading: Reading) -> bool:
        """Returns False if the database is not available."""
        try:
            await self._leave(reading)
        except Unavailable:
            return False
        except FairleadError:
            pass  # the job has ended
        return True

    async def _leave(self, reading: Reading) -> None:
        """Remove the reader. If it was the last one, cancel the job."""
        readers: Readers | None = reading.readers
        for _ in range(TRIES):
            if readers is None:
                return
            left = readers.left_by(reading.reader, await self._gone(readers))
            # An earlier attempt, whose outcome was not known, may have written `left` already.
            if left == readers or await self._replace_readers(reading, readers, left):
                if left.requests == (Reader(NONE, reading.reader.request),):
                    await self._jobs.cancel(reading.job_id)
                return
            found = await self._runtime.store.newest_submit(reading.user_id, reading.key)
            readers = Readers.of(found[2]) if found is not None else None

    async def _gone(self, readers: Readers) -> set[str]:
        """The processes of these readers that are not registered any more. Nearly always there is only one reader, and
        the database is not asked."""
        if len(readers.requests) == 1:
            return set()
        store = self._runtime.store
        now = await store.now()
        alive = {record.name for record in await store.processes() if record.alive(now)}
        return {reader.process for reader in readers.requests if reader.process} - alive

    async def _replace_readers(self, reading: Reading, was: Readers, readers: Readers) -> bool:
        """Returns False if the readers have changed since they were `was`."""
        change = ChangeReader(reading.user_id, reading.key, str(was), str(readers))
        return isinstance(await self._runtime.group_commit.write(change), Done)

    def _new_reader(self, identity: Identity) -> Reader:
        return Reader("" if identity.detached else self._runtime.process, uuid4().hex[:16])


def _next_number(key: str, prefix: str) -> str:
    """The end of the key that follows this one, of a job whose client has sent an idempotency key."""
    last = key.removeprefix(prefix)
    return f"{int(last) + 1:05}" if last.isdecimal() and last.isascii() else "00000"
