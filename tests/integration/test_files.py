"""Files of jobs on both engines: large values, saved files, and what remains of them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead
from fairlead.artifacts.files import NewFile
from fairlead.artifacts.objects import ObjectStore, ObjectsUnavailable
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.job import JobStatus
from fairlead.errors import InvalidInput, JobFailed, WrongState
from fairlead.executors.port import Call
from tests import s3_server
from tests.integration import handlers

PICTURE = os.urandom(25 * 1024 * 1024)
LARGE = "x" * 300_000


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


class FlakyObjects:
    """An object store that can be taken away. `waiting` is set when somebody has tried to use it since."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.away = False
        self.waiting = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        if self.away and name != "close":
            self.waiting.set()
            raise ObjectsUnavailable("the object store is away")
        return getattr(self._objects, name)


class Site:
    def __init__(self, app: Fairlead) -> None:
        self.app = app

    def flaky(self) -> FlakyObjects:
        flaky = FlakyObjects(self.app.files.objects)
        self.app.files.objects = flaky  # type: ignore[assignment]
        return flaky

    async def upload(self, content: bytes, user_id: str = "ada", name: str = "cat.png", **more: Any) -> dict[str, Any]:
        return (await self.app.files.save(NewFile(user_id, name, **more), pieces(content))).reference()

    async def content(self, reference: dict[str, Any]) -> bytes:
        return await self.app.files.read_all(await self.app.files.get(reference["$file"]))

    async def swept(self) -> list[str]:
        """The objects that are left when everything has been swept."""
        while await self.app.files.sweep(100):
            pass
        return [key async for page in self.app.files.objects.pages() for key, _ in page]


Make = Callable[..., Any]


@pytest.fixture
def make(engines: dict[str, str], tmp_path: Path) -> Make:
    @asynccontextmanager
    async def running(declare: Callable[[Fairlead], None], **more: Any) -> AsyncIterator[Site]:
        config = Config.model_validate({"artifacts": {"url": str(tmp_path / "files"), **more}})
        app = Fairlead(Settings(config), **engines)
        declare(app)
        async with app.running():
            yield Site(app)

    return running


def draw(app: Fairlead) -> None:
    """A pipeline of two services: one makes a picture of 25 MB, the other reads it, in a thread."""

    @app.service("draw", limit=2)
    async def draw(call: Call) -> dict[str, Any]:
        sketch = await call.read(call.params["sketch"])
        saved = await call.save("picture.png", sketch + PICTURE)
        return {"picture": saved, "sketch_bytes": len(sketch)}

    @app.service("measure", limit=2)
    def measure(call: Call) -> dict[str, Any]:
        with call.open(call.result_of("draw")["picture"]) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": digest, "copy": call.save("copy.bin", io.BytesIO(b"small"), "application/x-copy")}

    app.pipeline("art", ["draw", "measure"])


@pytest.mark.parametrize("objects", ["directory", "s3"])
async def test_a_picture_of_25_mb_goes_through_a_pipeline_and_ends_with_its_job(make: Make, objects: str) -> None:
    async with make(draw, **({"url": s3_server.new_bucket()} if objects == "s3" else {})) as site:
        sketch = await site.upload(b"sketch", expires_at=1.0)
        job = await site.app.submit("art", {"sketch": sketch}, user_id="ada")
        result = await job.result(timeout=60)
        assert result["sha256"] == hashlib.sha256(b"sketch" + PICTURE).hexdigest()
        view = await job.get()
        picture = view.context["step_0_draw"]["data"]["picture"]
        assert (picture["content_type"], picture["size"]) == ("image/png", len(PICTURE) + 6)
        assert await site.content(picture) == b"sketch" + PICTURE
        assert await site.content(result["copy"]) == b"small"
        assert len(await site.swept()) == 3
        with pytest.raises(WrongState):
            await site.app.files.delete(sketch["$file"])
        await site.app.delete(job.id)
        assert await site.swept() == []


def echo(app: Fairlead) -> None:
    @app.service("echo", limit=4)
    async def echo(call: Call) -> Any:
        return {"echo": call.params, "before": list(call.context)}

    @app.service("tell", limit=4)
    def tell(call: Call) -> Any:
        return call.result_of("echo")

    app.pipeline("twice", ["echo", "tell"])


async def test_large_inputs_and_results_are_kept_apart_and_read_whole(make: Make) -> None:
    async with make(echo) as site:
        job = await site.app.submit("twice", {"text": LARGE}, user_id="ada")
        expected = {"echo": {"text": LARGE}, "before": []}
        assert await job.result(timeout=30) == expected
        view = await job.get()
        assert view.input_data == {"text": LARGE}
        assert view.context["step_0_echo"]["data"] == view.result == expected
        # Both steps returned the same bytes, which are kept once.
        assert len(await site.swept()) == 2
        stored = await site.app._runtime.store.get(job.id)
        assert stored is not None
        assert all(len(text) < 300 for text in (stored.input_json, *(each.data_json for each in stored.results)))
        await site.app.delete(job.id)
        assert await site.swept() == []


async def test_a_value_above_max_inline_stays_a_reference_for_readers_and_not_for_its_caller(make: Make) -> None:
    async with make(echo, max_inline=2000) as site:
        job = await site.app.submit("echo", {"text": LARGE}, user_id="ada")
        assert await job.result(timeout=30) == {"echo": {"text": LARGE}, "before": []}
        view = await job.get()
        assert set(view.result) == set(view.input_data) == {"$stored", "size", "sha256"}


async def test_a_caller_cannot_reach_files_of_others_or_values_by_their_form(make: Make) -> None:
    def read(app: Fairlead) -> None:
        @app.service("read", limit=4)
        async def read(call: Call) -> Any:
            return (await call.read(call.params["file"])).decode()

        @app.service("name", limit=4)
        async def name(call: Call) -> Any:
            return call.params["text"] | {"$file": call.params["id"]}

        echo(app)

    async with make(read) as site:
        secret = await site.upload(b"secret", "bob")
        for named in (secret, {"$file": "file-" + "0" * 32}, {"$file": "../../etc/passwd"}, {"$file": 7}):
            with pytest.raises(InvalidInput):
                await site.app.submit("read", {"file": named}, user_id="ada")
        # By its id alone, which no check of the input sees.
        job = await site.app.submit("read", {"file": secret["$file"]}, user_id="ada")
        with pytest.raises(JobFailed, match="there is no file"):
            await job.result(timeout=30)
        job = await site.app.submit("name", {"id": secret["$file"], "text": {}}, user_id="ada")
        with pytest.raises(JobFailed, match="does not exist"):
            await job.result(timeout=30)
        value = await site.upload(b'{"a":1}', "bob", purpose="value", job_id="x")
        forged = {"$stored": value["$file"], "size": 7, "sha256": "x"}
        job = await site.app.submit("echo", forged, user_id="ada")
        assert await job.result(timeout=30) == {"echo": forged, "before": []}


async def test_files_are_used_from_child_processes(make: Make) -> None:
    def declare(app: Fairlead) -> None:
        app.service("child", limit=1, run_in="process")(handlers.redraw)

    async with make(declare) as site:
        given = await site.upload(b"given")
        job = await site.app.submit("child", {"file": given}, user_id="ada")
        result = await job.result(timeout=60)
        assert await site.content(result["bytes"]) == b"GIVEN"
        assert await site.content(result["path"]) == b"from a path"
        assert result["missing"] == "there is no file file-" + "0" * 32
        assert len(await site.swept()) == 3


async def test_a_lost_object_store_delays_jobs_and_costs_no_attempt(make: Make) -> None:
    """Results are kept until they can be stored, and inputs are read when they can be. Other jobs go on."""
    calls: list[str] = []

    def declare(app: Fairlead) -> None:
        @app.service("grow", limit=8, max_attempts=1)
        async def grow(call: Call) -> Any:
            calls.append(call.job_id)
            return {"text": LARGE, "n": call.params["n"]}

        @app.service("keep", limit=8, max_attempts=1)
        async def keep(call: Call) -> Any:
            return await call.save("a.bin", b"kept")

        @app.service("shrink", limit=8, max_attempts=1, backoff=[0.05])
        async def shrink(call: Call) -> Any:
            return len(call.params["text"])

        echo(app)

    async with make(declare) as site:
        app, flaky = site.app, site.flaky()
        await app.pause("shrink")
        given = [await app.submit("shrink", {"text": LARGE + str(n)}, user_id="ada") for n in range(3)]
        flaky.away = True
        grown = [await app.submit("grow", {"n": n}, user_id="ada") for n in range(5)]
        kept = await app.submit("keep", {}, user_id="ada")
        await app.unpause("shrink")
        async with asyncio.timeout(30):
            while not all([(await job.get()).attempts for job in given]):
                await asyncio.sleep(0.02)
            await flaky.waiting.wait()
        small = await app.submit("echo", {"n": 1}, user_id="bob")
        assert await small.result(timeout=30) == {"echo": {"n": 1}, "before": []}
        with pytest.raises(ObjectsUnavailable):
            await app.submit("echo", {"text": LARGE}, user_id="ada")
        assert {(await job.get()).status for job in grown} == {JobStatus.RUNNING}
        flaky.away = False
        assert [(await job.result(timeout=30))["n"] for job in grown] == list(range(5))
        assert await site.content(await kept.result(timeout=30)) == b"kept"
        assert [await job.result(timeout=30) for job in given] == [len(LARGE) + 1] * 3
        errors = {attempt["error"]["code"] for job in given for attempt in (await job.get()).attempts or ()}
        assert errors == {"STORE_UNAVAILABLE"}
        assert sorted(calls) == sorted(job.id for job in grown)  # no call was made twice
