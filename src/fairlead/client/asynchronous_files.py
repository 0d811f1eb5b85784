"""The methods of `AsyncClient` for files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar, Unpack

from fairlead.client import file_calls
from fairlead.client.calls import ApiCall
from fairlead.client.file_calls import PART, Source, UploadOptions, content_path, next_part, opened
from fairlead.errors import WrongState

T = TypeVar("T")


class AsyncFileCalls(ABC):
    """The methods for files, as a mixin of `AsyncClient`."""

    @abstractmethod
    async def _do(self, call: ApiCall[T], patience: float | None = None) -> T: ...

    @abstractmethod
    def download(self, file: str | Mapping[str, Any]) -> AsyncIterator[bytes]: ...

    async def upload(
        self, source: Source, filename: str | None = None, **about: Unpack[UploadOptions]
    ) -> dict[str, Any]:
        """Upload a file, and return it as the gateway shows it. `source` is bytes, a `Path`, or an open binary file.
        `{"$file": file["id"]}` names it in the input of a job. A large file is sent in parts, and a part that is cut
        off is sent again."""
        with opened(source, filename) as (file, name):
            part = next_part(file)
            if len(part) < PART:
                return await self._do(file_calls.upload(part, name, about))
            upload = (await self._do(file_calls.begin(name, about)))["id"]
            offset = 0
            while part:
                try:
                    await self._do(file_calls.send_part(upload, offset, part))
                except WrongState as error:
                    file_calls.check_arrived(error, offset + len(part))
                offset += len(part)
                part = next_part(file)
            return await self._do(file_calls.complete(upload))

    async def read_file(self, file: str | Mapping[str, Any]) -> bytes:
        """The content of a file, given its id, a reference, or what `upload` returned."""
        content = bytearray()
        async for piece in self.download(content_path(file)):
            content += piece
        return bytes(content)

    async def get_file(self, file: str | Mapping[str, Any]) -> dict[str, Any]:
        """What is known of a file, with a URL that reads its content for a while."""
        return await self._do(file_calls.get(file))

    async def list_files(
        self, *, user_id: str | None = None, purpose: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> dict[str, Any]:
        """One page of uploaded files, newest first: `data` and `next_cursor`."""
        return await self._do(file_calls.list_files(user_id, purpose, limit, cursor))

    async def delete_file(self, file: str | Mapping[str, Any]) -> None:
        """Delete a file. Raises WrongState if a job uses it."""
        await self._do(file_calls.delete(file))
