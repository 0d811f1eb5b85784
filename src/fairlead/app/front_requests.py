"""`app.fronts`: the jobs of fronts, and which request reads each of them (`domain/front_readers.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

from uuid_utils import uuid4, uuid7

from fairlead.app.jobs import Jobs
from fairlead.app.runtime import Runtime
from fairlead.domain.front_readers import NONE, Reader, key_prefix
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.openai import RETRIED_BY_CLIENTS, FrontAnswer
from fairlead.errors import FairleadError, IdempotencyMismatch, Unavailable
from fairlead.store.port import ChangeReader, Done

log = logging.getLogger("fairlead.openai")

TRIES = 20
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""The pauses before each further attempt to leave a job."""
JOINED_WITHIN_S = 300.0
"""How long after its end a job can be joined, unless the client sends its own idempotency key."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A request that reads the job `job_id`, and may cancel it when its client disconnects."""

    job_id: str
    user_id: str
    key: str
    reader: Reader
    new: bool = False
    """The request submitted the job."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes two requests of a user the same. `keyed`: the client has sent an idempotency key, so that all requests
    with it are the same; otherwise only those that the client marks as retries."""

    user_id: str
    fingerprint: str
    body: str
    keyed: bool = False


class FrontRequests:
    def __init__(self, runtime: Runtime, jobs: Jobs) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._followers: dict[str, list[Reader]] = {}
        """The open requests of this process, by job."""
        self._late: set[asyncio.Task[None]] = set()
        """Requests that could not leave at first."""

    @contextlib.contextmanager
    def following(self, reading: Reading) -> Iterator[None]:
        """Count the request as open: it becomes the reader again if a request of this process that joined the job
        leaves."""
        self._followers.setdefault(reading.job_id, []).append(reading.reader)
        try:
            yield
        finally:
            self._unfollow(reading)

    async def join(self, identity: Identity) -> Reading | None:
        """Become the reader of the newest job of the same request. None if there is none, or if it was cancelled,
        ended too long ago, or has an answer after which clients send the request again to get another one. Raises
        IdempotencyMismatch."""
        for _ in range(TRIES):
            reading, again = await self._try_to_join(identity)
            if not again:
                return reading
        return None

    async def _try_to_join(self, identity: Identity) -> tuple[Reading | None, bool]:
        """The reading, and whether to try again because another request became the reader at the same moment."""
        prefix = key_prefix(identity.fingerprint)
        found = await self._runtime.store.newest_submit(identity.user_id, prefix)
        former = Reader.of(found[2]) if found is not None else None
        if found is None or former is None or former.process == NONE:
            return None, False
        key, job_id, text = found
        if former.body != identity.body:
            raise IdempotencyMismatch("this Idempotency-Key was used with another body", pointer="/Idempotency-Key")
        job = (await self._runtime.store.get_jobs([job_id])).get(job_id)
        if job is None or await self._is_to_be_repeated(job):
            return None, False
        too_old = job.finished_at is not None and self._runtime.clock.now() - job.finished_at > JOINED_WITHIN_S
        if job.status is JobStatus.CANCELLED or (too_old and not identity.keyed):
            return None, False
        reader = self._new_reader(identity.body)
        outcome = await self._runtime.group_commit.write(ChangeReader(identity.user_id, key, text, str(reader)))
        if not isinstance(outcome, Done):
            return None, True
        return Reading(job_id, identity.user_id, key, reader), False

    async def _is_to_be_repeated(self, job: Job) -> bool:
        record = await self._runtime.store.get(job.id) if job.status is JobStatus.COMPLETED else None
        answer = FrontAnswer.of_result(record.result) if record is not None else None
        return answer is not None and answer.status in RETRIED_BY_CLIENTS

    async def submit(self, identity: Identity, accept: Callable[[str, str], Awaitable[str]]) -> Reading:
        """Submit a job for the request. `accept` gets the idempotency key and the text to store with it, and returns
        the id of the job."""
        reader = self._new_reader(identity.body)
        key = key_prefix(identity.fingerprint) + await self._suffix(identity)
        job_id = await accept(key, str(reader))
        return Reading(job_id, identity.user_id, key, reader, new=True)

    async def leave(self, reading: Reading) -> None:
        """Cancel the job of a client that has disconnected, unless another request has joined it, or another request
        of this process still follows it. It may have ended. While the database is not available, this is tried again in
        the background."""
        self._unfollow(reading)
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
            await self._hand_on(reading)
        except Unavailable:
            return False
        except FairleadError:
            pass  # the job has ended
        return True

    async def _hand_on(self, reading: Reading) -> None:
        """Make another request of this process the reader. If there is none, cancel the job."""
        reader = reading.reader
        while followers := self._followers.get(reading.job_id):
            heir = followers[-1]
            if not await self._replace_reader(reading, reader, heir) or heir in self._followers.get(reading.job_id, ()):
                return
            reader = heir  # its client has disconnected meanwhile
        left = replace(reader, process=NONE)
        for was in (reader, left):  # an attempt that failed may have written `left`
            if await self._replace_reader(reading, was, left):
                await self._jobs.cancel(reading.job_id)
                return

    async def _replace_reader(self, reading: Reading, was: Reader, reader: Reader) -> bool:
        """Returns False if `was` is not the reader."""
        change = ChangeReader(reading.user_id, reading.key, str(was), str(reader))
        return isinstance(await self._runtime.group_commit.write(change), Done)

    def _unfollow(self, reading: Reading) -> None:
        followers = self._followers.get(reading.job_id, [])
        if reading.reader in followers:
            followers.remove(reading.reader)
        if not followers:
            self._followers.pop(reading.job_id, None)

    async def _suffix(self, identity: Identity) -> str:
        """The end of the key of a new job. Keys sort by it. Two requests with the same key of a client get the same
        one, so that the database accepts only the first."""
        if not identity.keyed:
            return str(uuid7())
        prefix = key_prefix(identity.fingerprint)
        found = await self._runtime.store.newest_submit(identity.user_id, prefix)
        last = found[0].removeprefix(prefix) if found is not None else ""
        return f"{int(last) + 1:05}" if last.isdecimal() and last.isascii() else "00000"

    def _new_reader(self, body: str) -> Reader:
        return Reader(body, self._runtime.process, uuid4().hex[:16])
