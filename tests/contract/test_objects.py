"""The contract of object stores, on a directory and on an S3 server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from fairlead.artifacts.directory import PARTIAL, DirectoryObjects
from fairlead.artifacts.objects import PIECE, ObjectMissing, ObjectStore, ObjectsUnavailable
from fairlead.artifacts.remote import RemoteObjects
from fairlead.backends import objects_of
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.errors import ConfigError, WrongState
from tests import azure_server, s3_server

LARGE = os.urandom(20 * 1024 * 1024 + 7)


@pytest.fixture(params=["directory", "s3", *(["az"] if azure_server.PROGRAM else [])])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return DirectoryObjects(str(tmp_path / "objects"))
    return RemoteObjects((s3_server if request.param == "s3" else azure_server).new_bucket())


async def chunks(content: bytes, size: int = 300_000) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), size):
        yield content[begin : begin + size]


async def read(objects: ObjectStore, key: str, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([piece async for piece in objects.get(key, start, end)])


async def keys(objects: ObjectStore) -> dict[str, float]:
    return {key: written async for page in objects.pages() for key, written in page}


async def test_an_object_is_written_and_read_whole_or_in_part(objects: ObjectStore) -> None:
    await objects.check()
    large, empty = uuid4().hex, uuid4().hex
    await objects.put(large, chunks(LARGE), {"Content-Type": "image/png"})
    await objects.put(empty, chunks(b""), {})
    assert await read(objects, large) == LARGE
    assert await read(objects, large, 5, 17) == LARGE[5:17]
    assert await read(objects, large, len(LARGE) - 9) == LARGE[-9:]
    assert await read(objects, large, 8, 8) == b""
    assert await read(objects, empty) == b""
    found = await keys(objects)
    assert found.keys() == {large, empty}
    assert all(abs(written - time.time()) < 600 for written in found.values())
    await objects.delete([large, uuid4().hex])
    assert (await keys(objects)).keys() == {empty}
    with pytest.raises(ObjectMissing):
        await read(objects, large)


async def test_a_write_that_is_cut_off_leaves_no_object(objects: ObjectStore) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield LARGE
        raise ConnectionError("the client is gone")

    key = uuid4().hex
    with pytest.raises(ConnectionError):
        await objects.put(key, cut(), {})
    with pytest.raises(ObjectMissing):
        await read(objects, key)
    assert await keys(objects) == {}


@pytest.mark.parametrize("first_goes_on", [True, False])
async def test_an_upload_that_is_sent_again_replaces_the_first(tmp_path: Path, first_goes_on: bool) -> None:
    """A client that lost its connection sends its bytes again while the first upload still waits for more."""
    objects, key = DirectoryObjects(str(tmp_path / "objects")), uuid4().hex
    waits, goes_on, half = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"1" * PIECE
        waits.set()
        await goes_on.wait()
        if not first_goes_on:
            raise ConnectionError("the client is gone")
        yield b"1" * PIECE

    async def again() -> AsyncIterator[bytes]:
        yield b"2" * PIECE
        half.set()
        await asyncio.wait({first})
        yield b"2" * PIECE

    first = asyncio.create_task(objects.put(key, stalled(), {}))
    await waits.wait()
    second = asyncio.create_task(objects.put(key, again(), {}))
    await half.wait()
    goes_on.set()
    with pytest.raises(WrongState if first_goes_on else ConnectionError):
        await first
    await second
    assert await read(objects, key) == b"2" * 2 * PIECE


async def test_a_bucket_signs_urls_and_a_directory_has_none(objects: ObjectStore) -> None:
    key = uuid4().hex
    if isinstance(objects, DirectoryObjects):
        assert await objects.url(key, 60) is None
        return
    headers = {"Content-Type": "application/octet-stream", "Content-Disposition": 'attachment; filename="a"'}
    await objects.put(key, chunks(b"content"), headers)
    url = await objects.url(key, 60)
    assert url is not None
    async with httpx2.AsyncClient() as client:
        response = await client.get(url)
    assert response.content == b"content"
    assert response.headers["Content-Disposition"].startswith("attachment")


async def test_what_a_killed_process_left_is_listed_and_deleted(tmp_path: Path) -> None:
    objects = DirectoryObjects(str(tmp_path / "objects"))
    key = uuid4().hex
    await objects.put(key, chunks(b"x"), {})
    (path,) = (tmp_path / "objects").rglob(key)
    path.rename(f"{path}{PARTIAL}")
    assert (await keys(objects)).keys() == {key}
    await objects.delete([key])
    assert await keys(objects) == {}


async def test_a_store_that_cannot_be_reached_says_so_without_its_secrets(tmp_path: Path) -> None:
    remote = RemoteObjects(
        "s3://key:secret@bucket?endpoint=http://127.0.0.1:9&region=x&access_key_id=a&secret_access_key=b"
    )
    with pytest.raises(ObjectsUnavailable) as caught:
        await remote.check()
    assert "secret" not in str(caught.value)
    assert "bucket" not in caught.value.public
    blocked = tmp_path / "file"
    blocked.touch()
    directory = DirectoryObjects(str(blocked / "objects"))
    with pytest.raises(ObjectsUnavailable):
        await directory.check()
    with pytest.raises(ObjectsUnavailable):
        await directory.put(uuid4().hex, chunks(b"x"), {})


async def test_a_bucket_that_does_not_exist_is_an_outage() -> None:
    missing = s3_server.new_bucket().replace("bucket-", "no-bucket-")
    for content in (b"small", LARGE):
        with pytest.raises(ObjectsUnavailable):
            await RemoteObjects(missing).put(uuid4().hex, chunks(content), {})


async def test_keys_are_never_paths(tmp_path: Path) -> None:
    objects = DirectoryObjects(str(tmp_path))
    for key in ("../secret", "a/b", "", "A" * 32, "0" * 31):
        with pytest.raises(ValueError):
            await objects.put(key, chunks(b"x"), {})


def test_the_url_of_the_store_is_checked(tmp_path: Path) -> None:
    def made(url: str | None, database: str = "sqlite:///x/fairlead.db") -> ObjectStore:
        return objects_of(Settings(Config.model_validate({"artifacts": {"url": url}}), database))

    assert made(None).shown.endswith("/x/fairlead.db-files")
    assert made(None, "postgresql://h/d").shown.endswith("/fairlead-files")
    assert made(f"file://{tmp_path}").shown == made(str(tmp_path)).shown == str(tmp_path)
    assert made("s3://bucket/a?region=x").shown == "s3://bucket/a"
    for wrong in ("ftp://host/x", "http://host/x"):
        with pytest.raises(ConfigError, match="ARTIFACTS_URL"):
            made(wrong)
