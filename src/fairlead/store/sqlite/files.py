"""Files in SQLite: encodes their writes as rows of the view `batch` (see `files.sql`), and runs their queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairlead.domain.files import File
from fairlead.domain.transitions import Move, Submit
from fairlead.store.files import (
    CompleteFile,
    CreateFile,
    CreatePart,
    DeleteFile,
    FileTotals,
    FinishPart,
    ForgetArtifacts,
    Part,
    RenewFile,
    SweepFiles,
    file_of,
    file_row,
)
from fairlead.store.port import Done, Outcome
from fairlead.store.records import NO_FILE, NO_PART, NOT_UPLOADING
from fairlead.store.rows import micros
from fairlead.store.sqlite.encode import Row, json_body


def uses_of_submits(submits: Sequence[Submit]) -> list[Row]:
    uses = [(submit.job.id, file_id) for submit in submits if submit.files for file_id in submit.files]
    return [("use_files", json_body(uses))] if uses else []


def uses_of_moves(moves: Sequence[Move]) -> list[Row]:
    uses = [
        (n, file_id)
        for n, move in enumerate(moves)
        if move.result is not None and move.result.files
        for file_id in move.result.files
    ]
    return [("use_files_of_moves", json_body(uses))] if uses else []


def file_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case CreateFile(file, sweep_at):
            return "create_file", json_body((*file_row(file), micros(sweep_at)))
        case CompleteFile(file, sweep_at):
            return "complete_file", json_body((*file_row(file), micros(sweep_at)))
        case RenewFile(file_id, sweep_at):
            return "renew_file", json_body((file_id, micros(sweep_at)))
        case CreatePart(file_id, artifact_id, sweep_at):
            return "create_part", json_body((file_id, artifact_id, micros(sweep_at)))
        case FinishPart(file_id, artifact_id, offset, size):
            return "finish_part", json_body((file_id, artifact_id, offset, size))
        case DeleteFile(file_id):
            return "delete_file", file_id
        case SweepFiles(now, limit):
            return "sweep_files", json_body((micros(now), limit))
        case ForgetArtifacts(artifact_ids):
            return "forget_artifacts", json_body(artifact_ids)
        case _:
            raise TypeError(f"not a write of files: {transition!r}")


OUTCOMES: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    CompleteFile: ("complete_file", lambda artifact: NOT_UPLOADING if artifact is None else Done(artifact)),
    RenewFile: ("renew_file", lambda changed: Done() if changed else NOT_UPLOADING),
    CreatePart: ("create_part", lambda changed: Done() if changed else NOT_UPLOADING),
    FinishPart: ("finish_part", lambda changed: Done() if changed else NO_PART),
    DeleteFile: ("delete_file", lambda deleted: NO_FILE if deleted is None else Done(bool(deleted))),
    SweepFiles: ("sweep_files", lambda answer: Done((answer[0], answer[1]))),
}


class SqliteFileReads:
    """The reads of files; `Reads` inherits them."""

    _sql: dict[str, str]

    async def _rows(self, name: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def get_files(self, file_ids: Sequence[str]) -> dict[str, File]:
        rows = await self._rows("get_files", json_body(list(file_ids)))
        return {row[0]: file_of(row) for row in rows}

    async def list_files(
        self, user_id: str | None, *, purpose: str | None = None, before: str | None = None, limit: int
    ) -> list[File]:
        name = "list_files" if user_id is None else "list_files_of_user"
        users = () if user_id is None else (user_id,)
        rows = await self._rows(name, *users, before, before, purpose, purpose, limit)
        return [file_of(row) for row in rows]

    async def oldest_files(
        self, user_id: str | None, *, purpose: str | None, after: str | None, limit: int
    ) -> list[File]:
        name = "oldest_files" if user_id is None else "oldest_files_of_user"
        users = () if user_id is None else (user_id,)
        return [file_of(row) for row in await self._rows(name, *users, after, after, purpose, purpose, limit)]

    async def file_uses(self, job_id: str) -> list[File]:
        return [file_of(row) for row in await self._rows("file_uses", job_id)]

    async def file_parts(self, file_id: str) -> list[Part]:
        return [Part(*row) for row in await self._rows("file_parts", file_id)]

    async def known_artifacts(self, artifact_ids: Sequence[str]) -> set[str]:
        return set(await self._rows("known_artifacts", json_body(list(artifact_ids))))

    async def file_totals(self) -> FileTotals:
        return FileTotals(*await self._rows("file_totals"))

    async def uploaded_bytes(self, user_id: str) -> int:
        return int((await self._rows("uploaded_bytes", user_id))[0])

    async def secret(self, name: str) -> str:
        (value,) = await self._rows("secret", name)
        return str(value)
