"""Writes, reads and rows of files, shared by both engines (docs/adr/0030).

A file points to an artifact, the row of an object in the object store. `sweep_at` is the time at which the sweep looks
at a file: it then removes the file, unless a job uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.files import File
from fairlead.errors import InvalidInput

UPLOADING, WHOLE, DOOMED = 0, 1, 2


class FilesMissing(InvalidInput):
    """A transition names a file that does not exist, or is not uploaded completely. Nothing was stored."""


@fast_dataclass
class CreateFile:
    """Store a file whose bytes are about to be uploaded, and its artifact."""

    file: File
    sweep_at: float


@fast_dataclass
class CompleteFile:
    """Store that the bytes of a file are in the object store. Returns the id of the artifact that has them: the file's
    own, or one of the same user with the same bytes; the file's own is then doomed. Parts of the upload are doomed.
    Refused if the file does not exist or is complete."""

    file: File
    sweep_at: float | None


@dataclass(frozen=True, slots=True)
class RenewFile:
    """Keep a file that is being uploaded until `sweep_at`. Refused if it does not exist or is complete."""

    file_id: str
    sweep_at: float


@dataclass(frozen=True, slots=True)
class CreatePart:
    """Store the artifact of a part that is about to be uploaded, and renew its file. Refused if the file does not exist
    or is complete."""

    file_id: str
    artifact_id: str
    sweep_at: float


@dataclass(frozen=True, slots=True)
class FinishPart:
    """Store that a part is in the object store. Refused unless `offset` is the number of bytes in all parts before."""

    file_id: str
    artifact_id: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """Delete a file. Returns True, or False if a job uses it. Refused if it does not exist."""

    file_id: str


@dataclass(frozen=True, slots=True)
class SweepFiles:
    """Delete files whose time has come and that no job uses, at most `limit`, and doom the artifacts that no file names
    any more. Returns the number of files examined, and the ids of doomed artifacts, at most `limit`."""

    now: float
    limit: int


@dataclass(frozen=True, slots=True)
class ForgetArtifacts:
    """Delete the rows of doomed artifacts whose objects are gone."""

    artifact_ids: tuple[str, ...]


KINDS: tuple[type, ...] = (
    CreateFile,
    RenewFile,
    CreatePart,
    FinishPart,
    CompleteFile,
    DeleteFile,
    SweepFiles,
    ForgetArtifacts,
)
"""The writes of files, in the order in which a commit applies them, after the transitions of jobs."""


@dataclass(frozen=True, slots=True)
class Part:
    artifact_id: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FileTotals:
    """The number of files, of files that are being uploaded, of artifacts to be removed, and the bytes of all
    artifacts."""

    files: int
    uploading: int
    doomed: int
    size: int


class FileReads(Protocol):
    async def get_files(self, file_ids: Sequence[str]) -> dict[str, File]:
        """The files with these ids. Files that do not exist are absent from the result."""
        ...

    async def list_files(
        self, user_id: str | None, *, purpose: str | None = None, before: str | None = None, limit: int
    ) -> list[File]:
        """The complete files that users uploaded, newest first. `before` is the last id of the previous page."""
        ...

    async def oldest_files(
        self, user_id: str | None, *, purpose: str | None, after: str | None, limit: int
    ) -> list[File]:
        """Like `list_files`, oldest first. `after` is the last id of the previous page."""
        ...

    async def file_uses(self, job_id: str) -> list[File]:
        """The files that a job uses, oldest first."""
        ...

    async def file_parts(self, file_id: str) -> list[Part]:
        """The parts of a file that have been uploaded, in order."""
        ...

    async def known_artifacts(self, artifact_ids: Sequence[str]) -> set[str]:
        """Those of the ids that have a row."""
        ...

    async def file_totals(self) -> FileTotals: ...

    async def uploaded_bytes(self, user_id: str) -> int:
        """The bytes of all complete files that this user uploaded. Files of jobs and results of batches do not
        count."""
        ...

    async def secret(self, name: str) -> str:
        """A random text that the migration drew, the same for all processes."""
        ...


def file_row(file: File) -> tuple[Any, ...]:
    if any("\0" in text for text in (file.user_id, file.name, file.content_type, file.purpose)):
        raise InvalidInput("a name must not contain the character NUL")
    return (
        file.id,
        file.user_id,
        file.artifact_id,
        file.name,
        file.content_type,
        file.purpose,
        round(file.created_at * 1e6),
        file.size,
        file.sha256,
        None if file.expires_at is None else round(file.expires_at * 1e6),
        file.job_id,
    )


def file_of(row: Sequence[Any]) -> File:
    id_, user_id, artifact_id, name, type_, purpose, created_at, state, size, sha256, expires_at, job_id = row
    expires = None if expires_at is None else expires_at / 1e6
    ready = state == WHOLE
    return File(id_, user_id, artifact_id, name, type_, purpose, created_at / 1e6, ready, size, sha256, expires, job_id)


def missing() -> FilesMissing:
    return FilesMissing("a file that is named here does not exist any more, or is not uploaded completely")


Uses = Sequence[tuple[str, str]]
"""Pairs of the id of a job and the id of a file that it uses."""


def use_columns(uses: Uses) -> list[list[str]]:
    return [[job_id for job_id, _ in uses], [file_id for _, file_id in uses]]


def check_found(rows: Sequence[Any], uses: Uses) -> None:
    """Raise FilesMissing if `use_files` found fewer files than the jobs use."""
    if rows[0][0] != len({file_id for _, file_id in uses}):
        raise missing()
