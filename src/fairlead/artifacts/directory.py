"""The object store in a directory. File and directory are synchronised to the disk before a row names the object:
otherwise a power loss could leave a row whose bytes are gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from fairlead.artifacts.objects import PIECE, ObjectMissing, ObjectsUnavailable
from fairlead.domain.files import ARTIFACT_ID
from fairlead.errors import WrongState

T = TypeVar("T")

PARTIAL = ".partial"
"""The suffix of an object that is being written."""
PAGE = 1000


def _open(path: str) -> BinaryIO:
    return open(path, "rb")


class DirectoryObjects:
    def __init__(self, path: str) -> None:
        self._root = os.path.abspath(path)
        self.shown = self._root

    async def check(self) -> None:
        await self._run(self._check)

    def _check(self) -> None:
        folder = self._root if os.path.exists(self._root) else os.path.dirname(self._root)
        if not os.path.isdir(folder):
            raise NotADirectoryError(f"{folder} is not a directory")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write to {folder}")

    async def put(self, key: str, chunks: AsyncIterable[bytes], headers: Mapping[str, str]) -> None:
        file = await self._run(self._create, key)
        try:
            pending: list[bytes] = []
            size = 0
            async for chunk in chunks:
                pending.append(chunk)
                size += len(chunk)
                if size >= PIECE:
                    await self._run(file.writelines, pending)
                    pending, size = [], 0
            await self._run(self._finish, file, pending, key)
        except BaseException:
            await asyncio.shield(self._run(self._discard, file, key))
            raise

    def _create(self, key: str) -> BinaryIO:
        """Begin to write an object. If another upload of it is under way, that one fails: a client that lost its
        connection sends the bytes again before we notice."""
        path = self._path(key)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + PARTIAL)
        return open(path + PARTIAL, "wb")

    def _finish(self, file: BinaryIO, pending: list[bytes], key: str) -> None:
        file.writelines(pending)
        file.flush()
        os.fsync(file.fileno())
        path = self._path(key)
        if not self._is_own(file, key) and (os.path.exists(path + PARTIAL) or os.path.exists(path)):
            raise WrongState("the bytes of this file are being sent again", details={"status": "uploading"})
        os.rename(path + PARTIAL, path)
        file.close()
        for folder in (os.path.dirname(path), self._root):  # the folder itself may be new
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _is_own(self, file: BinaryIO, key: str) -> bool:
        """Whether the open file is the one that is named so, and not one that another upload has replaced."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self._path(key) + PARTIAL))
        return False

    def _discard(self, file: BinaryIO, key: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            if self._is_own(file, key):
                os.unlink(self._path(key) + PARTIAL)
        with contextlib.suppress(OSError):
            file.close()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        try:
            file = await self._run(_open, self._path(key))
        except ObjectsUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise ObjectMissing(f"there is no object {key} in {self.shown}") from None
            raise
        try:
            await self._run(file.seek, start)
            left = None if end is None else end - start
            while left is None or left > 0:
                piece = await self._run(file.read, PIECE if left is None else min(PIECE, left))
                if not piece:
                    return
                left = None if left is None else left - len(piece)
                yield piece
        finally:
            file.close()

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(self._delete, keys)

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            for path in (self._path(key), self._path(key) + PARTIAL):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    async def pages(self) -> AsyncIterator[list[tuple[str, float]]]:
        for folder in await self._run(self._folders):
            if len(folder) == 2:
                found = await self._run(self._in_folder, folder)
                for first in range(0, len(found), PAGE):
                    yield found[first : first + PAGE]

    def _folders(self) -> list[str]:
        return sorted(os.listdir(self._root)) if os.path.exists(self._root) else []

    def _in_folder(self, folder: str) -> list[tuple[str, float]]:
        found = []
        for name in os.listdir(os.path.join(self._root, folder)):
            with contextlib.suppress(FileNotFoundError):
                written = os.stat(os.path.join(self._root, folder, name)).st_mtime
                found.append((name.removesuffix(PARTIAL), written))
        return [each for each in found if ARTIFACT_ID.fullmatch(each[0])]

    async def url(self, key: str, seconds: float) -> str | None:
        return None

    async def close(self) -> None: ...

    def _path(self, key: str) -> str:
        if not ARTIFACT_ID.fullmatch(key):  # a key comes from the database, never from a caller
            raise ValueError(f"{key!r} is not the key of an object")
        return os.path.join(self._root, key[-2:], key)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return await asyncio.to_thread(function, *arguments)
        except OSError as error:
            raise ObjectsUnavailable(f"{self._root}: {error.strerror or error}") from error
