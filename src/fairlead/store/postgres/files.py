"""Writes and reads of files in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.domain.files import File
from fairlead.store.files import (
    DOOMED,
    WHOLE,
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
from fairlead.store.postgres.moves import Ask
from fairlead.store.postgres.queries import READS
from fairlead.store.records import NO_FILE, NO_PART, NOT_UPLOADING
from fairlead.store.rows import micros


async def apply(transition: Any, ask: Ask, now: int) -> Outcome:
    """Apply one write of files within an open transaction."""
    match transition:
        case CreateFile(file, sweep_at):
            await ask("create_artifact", file.artifact_id, file.user_id)
            await ask("create_file", *file_row(file), micros(sweep_at))
        case RenewFile(file_id, sweep_at):
            return Done() if await ask("renew_file", file_id, micros(sweep_at)) else NOT_UPLOADING
        case CreatePart(file_id, artifact_id, sweep_at):
            owner = await ask("renew_file", file_id, micros(sweep_at))
            if not owner:
                return NOT_UPLOADING
            await ask("create_artifact", artifact_id, owner[0][0])
            await ask("create_part", file_id, artifact_id)
        case FinishPart(file_id, artifact_id, offset, size):
            await ask("lock_uploading", file_id)
            return Done() if await ask("finish_part", file_id, artifact_id, offset, size) else NO_PART
        case CompleteFile():
            return await _complete(transition, ask)
        case DeleteFile(file_id):
            if not await ask("lock_file", file_id):
                return NO_FILE
            if await ask("used_files", [file_id]):
                return Done(False)
            await _remove([file_id], ask)
            return Done(True)
        case SweepFiles(moment, limit):
            return await _sweep(min(micros(moment) or 0, now), limit, ask)
        case ForgetArtifacts(artifact_ids):
            await ask("forget_artifacts", list(artifact_ids))
        case _:
            raise TypeError(f"not a write of files: {transition!r}")
    return Done()


async def _complete(complete: CompleteFile, ask: Ask) -> Outcome:
    file = complete.file
    rows = await ask("lock_uploading", file.id)
    if not rows:
        return NOT_UPLOADING
    own, user_id = rows[0]
    await ask("lock_same_bytes", f"{user_id}\n{file.sha256}")
    same = await ask("same_artifact", user_id, file.sha256, file.size)
    artifact_id = same[0][0] if same else own
    await ask("finish_artifact", own, DOOMED if same else WHOLE, file.size, file.sha256)
    about = file.name, file.content_type, file.purpose, file.size, file.sha256, micros(file.expires_at)
    await ask("complete_file", file.id, artifact_id, *about, micros(complete.sweep_at))
    if parts := [row[0] for row in await ask("remove_parts", file.id)]:
        await ask("doom_artifacts", parts)
    return Done(artifact_id)


async def _sweep(now: int, limit: int, ask: Ask) -> Outcome:
    files = [row[0] for row in await ask("lock_swept_files", now, limit)]
    if files:
        used = {row[0] for row in await ask("used_files", files)}
        if used:
            await ask("keep_files", sorted(used))
        if unused := sorted(set(files) - used):
            await _remove(unused, ask)
    return Done((len(files), [row[0] for row in await ask("doomed_artifacts", limit)]))


async def _remove(file_ids: list[str], ask: Ask) -> None:
    """Delete these files, whose rows are locked, and doom the artifacts that no other file names."""
    artifacts = sorted(row[0] for row in await ask("remove_files", file_ids))
    await ask("lock_artifacts", artifacts)
    await ask("doom_artifacts", artifacts)


class PostgresFileReads:
    """The reads of files; `Reads` inherits them."""

    async def _ask(self, sql: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def get_files(self, file_ids: Sequence[str]) -> dict[str, File]:
        return {row[0]: file_of(row) for row in await self._ask(READS["get_files"], list(file_ids))}

    async def list_files(
        self, user_id: str | None, *, purpose: str | None = None, before: str | None = None, limit: int
    ) -> list[File]:
        return [file_of(row) for row in await self._ask(READS["list_files"], user_id, purpose, before, limit)]

    async def oldest_files(
        self, user_id: str | None, *, purpose: str | None, after: str | None, limit: int
    ) -> list[File]:
        return [file_of(row) for row in await self._ask(READS["oldest_files"], user_id, purpose, after, limit)]

    async def file_uses(self, job_id: str) -> list[File]:
        return [file_of(row) for row in await self._ask(READS["file_uses"], job_id)]

    async def file_parts(self, file_id: str) -> list[Part]:
        return [Part(*row) for row in await self._ask(READS["file_parts"], file_id)]

    async def known_artifacts(self, artifact_ids: Sequence[str]) -> set[str]:
        return {row[0] for row in await self._ask(READS["known_artifacts"], list(artifact_ids))}

    async def file_totals(self) -> FileTotals:
        return FileTotals(*(await self._ask(READS["file_totals"]))[0])

    async def uploaded_bytes(self, user_id: str) -> int:
        return int((await self._ask(READS["uploaded_bytes"], user_id))[0][0])

    async def secret(self, name: str) -> str:
        return str((await self._ask(READS["secret"], name))[0][0])
