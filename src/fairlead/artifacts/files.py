"""Saves and reads files: their rows in the database, and their bytes in the object store.

The order is what keeps every reference whole (docs/adr/0030): a row in the state `uploading`, then the bytes, then the
row as complete; and at the end, first the rows, then the bytes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from urllib.parse import quote

from uuid_utils import uuid7

from fairlead import failpoints
from fairlead.artifacts.objects import ObjectMissing, ObjectStore, ObjectsUnavailable
from fairlead.domain import files
from fairlead.domain.config import ArtifactsConfig
from fairlead.domain.file_batch import OUTPUT
from fairlead.domain.files import File
from fairlead.errors import FileQuota, NotFound, TooLarge, Unavailable, WrongState
from fairlead.outage import Outage
from fairlead.store.files import (
    CompleteFile,
    CreateFile,
    CreatePart,
    DeleteFile,
    FinishPart,
    ForgetArtifacts,
    RenewFile,
    SweepFiles,
)
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, Store

log = logging.getLogger("fairlead.files")


@dataclass(frozen=True, slots=True)
class NewFile:
    """What is known of a file before its bytes are. `job_id` is the job that it is made by or for. A file of a job is
    kept for `keep_for` seconds and `artifacts.orphan_after` before it is used by the commit that ends the step."""

    user_id: str
    name: str
    content_type: str | None = None
    purpose: str = files.UPLOAD
    expires_at: float | None = None
    job_id: str | None = None
    keep_for: float = 0.0


@dataclass(slots=True)
class FileCounts:
    """What this process has done with files since it started."""

    saved: int = 0
    saved_bytes: int = 0
    read: int = 0
    removed: int = 0
    refused: int = 0
    """Operations that failed because the object store could not be reached."""


class Files:
    def __init__(
        self,
        store: Store,
        group_commit: GroupCommit,
        objects: ObjectStore,
        config: ArtifactsConfig,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._group_commit = group_commit
        self._now = now
        self._secret: str | None = None
        self.objects = objects
        self.config = config
        self.counts = FileCounts()
        self.outage = Outage(log, "the object store")

    # ------------------------------------------------------------ save

    async def save(self, new: NewFile, chunks: AsyncIterable[bytes]) -> File:
        """Store a file. When this returns, the file is complete and survives a power loss."""
        file = await self.begin(new)
        return await self.complete(await self.write(file, chunks), keep_for=new.keep_for)

    async def begin(self, new: NewFile) -> File:
        """Store that a file is about to be uploaded."""
        await self._room(new, 1)
        now = self._now()
        name = files.clean_name(new.name)
        file = File(
            f"file-{uuid7().hex}",
            new.user_id,
            uuid7().hex,
            name,
            files.content_type_of(new.content_type, name),
            files.check_purpose(new.purpose),
            now,
            expires_at=new.expires_at,
            job_id=new.job_id,
        )
        await self._group_commit.write(CreateFile(file, now + self.config.orphan_after))
        failpoints.passed(failpoints.FILE_CREATED)
        return file

    async def write(self, file: File, chunks: AsyncIterable[bytes]) -> File:
        """Write the bytes of a file that has begun. Returns it with its size and SHA-256, which `complete` stores."""
        written = _Digest(self, file, chunks, await self._room(file))
        await self._put(file.artifact_id, written, file)
        failpoints.passed(failpoints.FILE_WRITTEN)
        return replace(file, size=written.size, sha256=written.digest.hexdigest())

    async def complete(self, file: File, *, keep_for: float = 0.0) -> File:
        """Store that all bytes of a file are written. Raises Unavailable if the upload took so long that it was given
        up."""
        sweep_at = file.expires_at if file.job_id is None else self._now() + keep_for + self.config.orphan_after
        outcome = await self._group_commit.write(CompleteFile(file, sweep_at))
        failpoints.passed(failpoints.FILE_COMPLETED)
        if not isinstance(outcome, Done):
            if not await self._store.known_artifacts([file.artifact_id]):  # swept; otherwise it is complete
                await self._delete_objects([file.artifact_id])
            raise Unavailable(f"the upload of {file.id} was given up: it took too long", retry_after=1.0)
        self.counts.saved += 1
        self.counts.saved_bytes += file.size or 0
        return replace(file, ready=True, artifact_id=outcome.value)

    async def _room(self, file: File | NewFile, needed: int = 0) -> int | None:
        """How many bytes the user of this file may still upload; None if that is unlimited. Raises FileQuota if it is
        less than `needed`. What jobs and batches make is never refused: they would not end."""
        most = self.config.max_user_bytes
        if most is None or file.job_id is not None or file.purpose == OUTPUT:
            return None
        room = most - await self._store.uploaded_bytes(file.user_id)
        if room < needed:
            raise self.quota(file.user_id)
        return room

    def quota(self, user_id: str) -> FileQuota:
        most = self.config.max_user_bytes
        return FileQuota(f"the files of {user_id} may have {most} bytes in total (artifacts.max_user_bytes)")

    async def _put(self, key: str, chunks: AsyncIterable[bytes], file: File) -> None:
        headers = {"Content-Type": file.content_type, "Content-Disposition": disposition(file, attachment=True)}
        with self._reaching():
            await self.objects.put(key, chunks, headers)

    async def renew(self, file_id: str) -> None:
        """Keep an upload that is under way."""
        outcome = await self._group_commit.write(RenewFile(file_id, self._now() + self.config.orphan_after))
        if not isinstance(outcome, Done):
            raise Unavailable(f"the upload of {file_id} was given up: it took too long", retry_after=1.0)

    # ------------------------------------------------------------ save in parts

    async def add_part(self, file: File, offset: int, chunks: AsyncIterable[bytes]) -> int:
        """Append bytes to a file that is being uploaded in parts. Returns its new size. Raises WrongState unless
        `offset` is its size so far."""
        self._require_uploading(file)
        if offset != (size := await self.uploaded(file)):
            raise _wrong_offset(offset, size)
        key = uuid7().hex
        lease = self._now() + self.config.orphan_after
        if not isinstance(await self._group_commit.write(CreatePart(file.id, key, lease)), Done):
            raise NotFound(f"there is no upload {file.id}")
        part = _Digest(self, file, chunks, await self._room(file), before=offset)
        await self._put(key, part, file)
        failpoints.passed(failpoints.PART_WRITTEN)
        finish = FinishPart(file.id, key, offset, part.size)
        if not isinstance(await self._group_commit.write(finish), Done):
            raise _wrong_offset(offset, await self.uploaded(file))
        return offset + part.size

    async def uploaded(self, file: File) -> int:
        """How many bytes of a file that is being uploaded in parts have arrived."""
        return sum(part.size for part in await self._store.file_parts(file.id))

    async def part_count(self, file: File) -> int:
        """How many parts of a file that is being uploaded have arrived."""
        return len(await self._store.file_parts(file.id))

    async def assemble(self, file: File) -> File:
        """Complete a file from its parts."""
        self._require_uploading(file)
        parts = await self._store.file_parts(file.id)

        async def pieces() -> AsyncIterator[bytes]:
            for part in parts:
                async with aclosing(self._get(part.artifact_id)) as found:
                    async for piece in found:
                        yield piece

        return await self.complete(await self.write(file, pieces()))

    def _require_uploading(self, file: File) -> None:
        if file.ready:
            raise WrongState(f"the file {file.id} is complete already", details={"status": "ready"})

    # ------------------------------------------------------------ read

    async def get(self, file_id: str, user_id: str | None = None) -> File:
        """The file with this id. Raises NotFound if there is none, or if `user_id` is given and is not its user."""
        # Only an id is looked up: the text may come from a URL.
        found = (await self._store.get_files([file_id])).get(file_id) if files.FILE_ID.fullmatch(file_id) else None
        if found is None or (user_id is not None and found.user_id != user_id):
            raise NotFound(f"there is no file {file_id[:50]}")
        return found

    async def get_complete(self, file_id: str, user_id: str | None = None) -> File:
        """Like `get`, but raises NotFound too if the file is not uploaded completely."""
        found = await self.get(file_id, user_id)
        if not found.ready:
            raise NotFound(f"there is no file {file_id[:50]}: its upload is not complete")
        return found

    async def get_many(self, file_ids: Sequence[str]) -> dict[str, File]:
        """The files with these ids, of any user. Files that do not exist are absent."""
        return await self._store.get_files(file_ids)

    async def list(
        self, user_id: str | None, *, purpose: str | None = None, before: str | None = None, limit: int
    ) -> list[File]:
        """The files that users uploaded, newest first."""
        return await self._store.list_files(user_id, purpose=purpose, before=before, limit=limit)

    async def oldest(
        self, user_id: str | None, *, purpose: str | None, after: str | None, limit: int
    ) -> Sequence[File]:
        """The files that users uploaded, oldest first. `after` is the last id of the previous page."""
        return await self._store.oldest_files(user_id, purpose=purpose, after=after, limit=limit)

    def read(self, file: File, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes of a complete file, from `start` up to, and without, `end`."""
        self.counts.read += 1
        return self._get(file.artifact_id, start, end)

    async def read_all(self, file: File, most: int | None = None) -> bytes:
        """All bytes of a file. Raises TooLarge if they are more than `most`."""
        if most is not None and (file.size or 0) > most:
            raise TooLarge(f"the file {file.id} has {file.size} bytes, and at most {most} are read at once")
        async with aclosing(self.read(file)) as pieces:
            content = b"".join([piece async for piece in pieces])
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ObjectsUnavailable(f"{self.objects.shown}: the bytes of {file.id} do not have its SHA-256")
        return content

    async def _get(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        with self._reaching():
            async with aclosing(self.objects.get(key, start, end)) as pieces:
                async for piece in pieces:
                    yield piece

    async def url(self, file: File) -> str | None:
        """A URL of the object store itself, with which anyone can read the file until it expires; None if the store has
        none, or the configuration does not allow it."""
        if not self.config.presign:
            return None
        with self._reaching():
            return await self.objects.url(file.artifact_id, self.config.ticket_ttl)

    async def service_url(self, file: File, seconds: float) -> str | None:
        """A URL with which a service can fetch the file for at least this time; None if the configuration has neither
        `artifacts.presign` nor `artifacts.public_url`."""
        if (url := await self.url(file)) is not None:
            return url
        if self.config.public_url is None:
            return None
        ticket, _ = await self.ticket(file.id, seconds)
        return f"{self.config.public_url.rstrip('/')}/files/{file.id}?ticket={ticket}"

    async def ticket(self, file_id: str, at_least: float = 0.0) -> tuple[str, int]:
        """A ticket that reads this file over HTTP, and the time at which it expires, in seconds since 1970."""
        expires_at = int(self._now() + max(at_least, self.config.ticket_ttl)) + 1
        return files.ticket_of(await self._ticket_secret(), file_id, expires_at), expires_at

    async def is_valid_ticket(self, file_id: str, ticket: str) -> bool:
        return files.is_valid_ticket(await self._ticket_secret(), file_id, ticket, self._now())

    async def _ticket_secret(self) -> str:
        if self._secret is None:
            self._secret = await self._store.secret("files")
        return self._secret

    # ------------------------------------------------------------ remove

    async def delete(self, file_id: str) -> None:
        """Delete a file. Raises WrongState if a job uses it. The sweep removes its bytes."""
        outcome = await self._group_commit.write(DeleteFile(file_id))
        if not isinstance(outcome, Done):
            raise NotFound(f"there is no file {file_id}")
        if not outcome.value:
            raise WrongState(
                f"the file {file_id} is used by a job or a batch, which must end first", details={"status": "in_use"}
            )

    async def sweep(self, limit: int) -> int:
        """Remove files that have ended, and the objects that no file names any more. Returns how many files and objects
        were looked at."""
        outcome = await self._group_commit.write(SweepFiles(self._now(), limit))
        assert isinstance(outcome, Done)
        examined, doomed = outcome.value
        failpoints.passed(failpoints.FILES_SWEPT)
        if doomed:
            await self._delete_objects(doomed)
            failpoints.passed(failpoints.OBJECTS_DELETED)
            await self._group_commit.write(ForgetArtifacts(tuple(doomed)))
            self.counts.removed += len(doomed)
        return int(examined) + len(doomed)

    async def sweep_unknown(self, older_than: float) -> int:
        """Delete the objects that have no row and were written more than `older_than` seconds ago. Returns how many."""
        removed, before = 0, self._now() - older_than
        with self._reaching():
            async for page in self.objects.pages():
                old = [key for key, written in page if written < before]
                known = await self._store.known_artifacts(old) if old else set()
                unknown = [key for key in old if key not in known]
                await self.objects.delete(unknown)
                removed += len(unknown)
        self.counts.removed += removed
        return removed

    async def _delete_objects(self, keys: Sequence[str]) -> None:
        with self._reaching():
            await self.objects.delete(keys)

    # ------------------------------------------------------------ health

    async def ping(self) -> None:
        """Check that the object store can be reached. Raises ObjectsUnavailable."""
        with self._reaching():
            await self.objects.check()

    def _reaching(self) -> _Reaching:
        return _Reaching(self)


class _Reaching:
    """Notes whether the object store works. A class, because a generator cannot leave a `contextmanager` when it is
    closed early."""

    __slots__ = ("_files",)

    def __init__(self, files_: Files) -> None:
        self._files = files_

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ObjectsUnavailable):
            self._files.counts.refused += 1
            self._files.outage.began(error)
        elif error is None:
            self._files.outage.ended()
        elif isinstance(error, ObjectMissing):
            log.error("%s, but a row of the database names it", error)


class _Digest:
    """Measures the bytes of an upload while they are written, and renews the upload. `room` is the number of bytes that
    its user may still upload, `before` how many of this file were written before."""

    def __init__(
        self, files_: Files, file: File, chunks: AsyncIterable[bytes], room: int | None, before: int = 0
    ) -> None:
        self._files = files_
        self._file = file
        self._chunks = chunks
        self._room = None if room is None else room - before
        self._most = files_.config.max_file - before
        self._renew_every = files_.config.orphan_after / 3
        self.size = 0
        self.digest = hashlib.sha256()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        renew_at = self._files._now() + self._renew_every
        async for chunk in self._chunks:
            self.size += len(chunk)
            if self.size > self._most:
                raise TooLarge(f"a file may have {self._files.config.max_file} bytes (artifacts.max_file)")
            if self._room is not None and self.size > self._room:
                raise self._files.quota(self._file.user_id)
            self.digest.update(chunk)
            yield chunk
            failpoints.passed(failpoints.FILE_WRITING)
            if self._files._now() >= renew_at:
                await self._files.renew(self._file.id)
                renew_at = self._files._now() + self._renew_every


def disposition(file: File, *, attachment: bool) -> str:
    """The header Content-Disposition of a file. The name is given twice, for clients that know ASCII only."""
    ascii_name = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%;' else "_" for c in file.name)
    how = "attachment" if attachment else "inline"
    return f"{how}; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(file.name, safe='')}"


def _wrong_offset(offset: int, size: int) -> WrongState:
    return WrongState(
        f"the next part begins at {size}, not at {offset}", details={"status": "uploading", "offset": size}
    )
