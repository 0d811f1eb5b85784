"""The object store in a bucket of S3, Google Cloud Storage or Azure, by `obstore`.

Credentials and endpoints come from the variables that the providers' own tools use (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL`, ...), or from the query of the URL: `s3://bucket/prefix?endpoint=http://minio:9000&region=us-east-1`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from fairlead.artifacts.objects import PIECE, ObjectMissing, ObjectsUnavailable
from fairlead.domain.files import ARTIFACT_ID
from fairlead.errors import ConfigError

T = TypeVar("T")

PART = 8 * 1024 * 1024
"""The size of the parts in which an object is sent. S3 accepts 10,000 parts."""
AT_A_TIME = 2
FOLDER = "objects"
ENDPOINT = "AWS_ENDPOINT_URL"
PAGE = 1000
SIGNED = ("s3", "gs", "az")
RETRY = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}


class RemoteObjects:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        options = dict(parse_qsl(parts.query))
        if parts.scheme == "s3" and ENDPOINT in os.environ:  # obstore knows AWS_ENDPOINT only
            options.setdefault("endpoint", os.environ[ENDPOINT])
        client = {"timeout": "60s", "connect_timeout": "5s"}
        if any(value.startswith("http://") for value in options.values()):
            client["allow_http"] = "true"
        self._signs = parts.scheme in SIGNED
        try:
            # The keys of the configuration depend on the provider, so they cannot be typed here.
            config: Any = options
            settings: Any = {"client_options": client, "retry_config": RETRY, "config": config}
            self._store: Any = from_url(f"{parts.scheme}://{parts.netloc}{parts.path}", **settings)
        except (BaseError, ValueError, TypeError) as error:
            raise ConfigError([f"ARTIFACTS_URL: {self.shown}: {error}"]) from None

    async def check(self) -> None:
        await self._run(obstore.list_with_delimiter, self._store)

    async def put(self, key: str, chunks: AsyncIterable[bytes], headers: Mapping[str, str]) -> None:
        # Nothing is visible before `close`. A writer that is not closed leaves parts, which the bucket should expire.
        options: Any = {"attributes": dict(headers), "buffer_size": PART, "max_concurrency": AT_A_TIME}
        writer: Any = await self._run(partial(obstore.open_writer, self._store, _path(key), **options))
        pending = bytearray()
        async for chunk in chunks:
            pending += chunk
            if len(pending) >= PIECE:
                await self._write(writer.write, bytes(pending))
                pending = bytearray()
        if pending:
            await self._write(writer.write, bytes(pending))
        await self._write(writer.close)

    async def _write(self, function: Callable[..., Any], *arguments: bytes) -> None:
        try:
            await self._run(function, *arguments)
        except FileNotFoundError as error:
            raise ObjectsUnavailable(f"{self.shown}: the bucket does not exist: {str(error)[:500]}") from error

    async def get(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        if end is not None and end <= start:
            return
        options: Any = {}
        if start or end is not None:
            options["range"] = {"offset": start} if end is None else (start, end)
        try:
            found: Any = await self._run(partial(obstore.get, self._store, _path(key), options=options))
            pieces = iter(found.stream(min_chunk_size=PIECE))
            while (piece := await self._run(next, pieces, None)) is not None:
                yield bytes(piece)
        except FileNotFoundError:
            raise ObjectMissing(f"there is no object {key} in {self.shown}") from None

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with suppress(FileNotFoundError):
                await self._run(obstore.delete, self._store, _path(key))

    async def pages(self) -> AsyncIterator[list[tuple[str, float]]]:
        pages: Any = iter(obstore.list(self._store, FOLDER, chunk_size=PAGE))
        while (page := await self._run(next, pages, None)) is not None:
            found = [(str(meta["path"]).rpartition("/")[2], meta["last_modified"].timestamp()) for meta in page]
            yield [each for each in found if ARTIFACT_ID.fullmatch(each[0])]

    async def url(self, key: str, seconds: float) -> str | None:
        if not self._signs:
            return None
        return str(await self._run(obstore.sign, self._store, "GET", _path(key), timedelta(seconds=seconds)))

    async def close(self) -> None: ...

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call the object store in a thread. (With obstore's coroutines, a process that exits soon after one has ended
        may be aborted.) An object that does not exist is not an outage."""
        try:
            return await asyncio.to_thread(function, *arguments)
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise ObjectsUnavailable(f"{self.shown}: {str(error)[:500]}") from error


def _path(key: str) -> str:
    return f"{FOLDER}/{key[-2:]}/{key}"
