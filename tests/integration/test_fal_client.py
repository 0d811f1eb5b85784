"""The Python client `fal_client`, unmodified, against the fal front."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.app.jobs import Jobs
from fairlead.artifacts.files import NewFile
from fairlead.domain.job import JobStatus
from fairlead.errors import Unavailable
from tests.integration.fal_site import (
    ADMIN,
    Completed,
    FalClientHTTPError,
    FalSite,
    InProgress,
    Queued,
    fal_client,
    open_fal,
)

SIZES = {"prompt": "a harbour"}


async def test_a_request_is_submitted_followed_and_read(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site:
        client = site.client()
        first = await client.submit("acme/flux/dev", {"prompt": "first"})
        await site.endpoint.reaches(open=1)
        second = await client.submit("acme/flux", SIZES)
        third = await client.submit("acme/flux", SIZES)
        assert isinstance(await first.status(), InProgress)
        assert await second.status() == Queued(position=0)
        assert await third.status() == Queued(position=1)
        job = await site.app.get(second.request_id)
        assert (job.feature_name, job.input_data, job.metadata) == ("flux", SIZES, {"app": "acme/flux"})
        with pytest.raises(FalClientHTTPError) as caught:  # the result of a request that has none yet
            await fal_client.client._async_request(await client._client, "GET", first.response_url)
        assert (caught.value.status_code, caught.value.error_type) == (400, "in_progress")
        site.endpoint.gate.set()
        assert await first.get() == {"prompt": "first", "user": "anonymous"}
        done = await first.status()
        assert isinstance(done, Completed)
        assert (done.logs, done.error) == (None, None)
        assert done.metrics["inference_time"] > 0
        assert await client.result("acme/flux/dev", third.request_id) == {"prompt": "a harbour", "user": "anonymous"}


async def test_a_subscriber_sees_its_position_the_logs_and_the_result(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site:
        client = site.client()
        await client.submit("acme/flux", {})
        await site.endpoint.reaches(open=1)
        updates: list[Any] = []
        enqueued: list[str] = []
        waiting = asyncio.create_task(
            client.subscribe(
                "acme/flux", SIZES, with_logs=True, on_enqueue=enqueued.append, on_queue_update=updates.append
            )
        )
        await site.until(lambda: site.polls.held == 1)
        site.endpoint.gate.set()
        assert await waiting == {"prompt": "a harbour", "user": "anonymous"}
        assert [(await site.app.get(each)).status for each in enqueued] == [JobStatus.COMPLETED]
        assert updates[0] == Queued(position=0)
        assert isinstance(updates[-1], Completed)
        assert updates[-1].logs[-1]["message"] == "nearly all of it"
        assert {(log["level"], log["source"]) for log in updates[-1].logs} == {("INFO", "USER")}


async def test_a_request_that_runs_when_it_is_first_polled_shows_its_log(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site:
        handle = await site.client().submit("acme/flux", {})
        await site.endpoint.reaches(open=1)
        async for status in handle.iter_events(with_logs=True):
            assert isinstance(status, InProgress)
            if status.logs:
                assert status.logs[0]["message"] == "half of it"
                return


async def test_the_synchronous_client_works_the_same(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site:
        client = site.sync_client()
        updates: list[Any] = []

        def use() -> list[Any]:
            subscribed = client.subscribe("acme/echo", SIZES, on_queue_update=updates.append)
            handle = client.submit("acme/flux", SIZES, priority="low")
            handle.cancel()
            ended = [status for status in handle.iter_events() if isinstance(status, Completed)]
            words = list(client.stream("acme/talk", {"words": [{"a": 1}, {"b": 2}]}))
            return [subscribed, ended[0].error_type, words, client.run("acme/echo", SIZES)]

        assert await asyncio.to_thread(use) == [{"echo": SIZES}, "cancelled", [{"a": 1}, {"b": 2}], {"echo": SIZES}]
        assert isinstance(updates[-1], Completed)


async def test_a_request_is_cancelled_early_and_not_late(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site:
        client = site.client()
        running = await client.submit("acme/flux", {})
        await site.endpoint.reaches(open=1)
        waiting = await client.submit("acme/flux", {})
        for handle in (waiting, running):
            await handle.cancel()
            status = await handle.status()
            assert isinstance(status, Completed)
            assert (status.error, status.error_type) == ("the request was cancelled", "cancelled")
            for again in (handle.cancel, handle.get):  # one call each: 409 would be retried for a minute
                with pytest.raises(FalClientHTTPError) as caught:
                    await again()
                assert caught.value.status_code == 400
        await client.cancel("acme/flux", (await client.submit("acme/flux", {})).request_id)
        with pytest.raises(FalClientHTTPError) as caught:
            await client.cancel("acme/flux", "01a1ea38-3485-7395-ad9b-8d671df5f280")
        assert caught.value.status_code == 404
        assert caught.value.response.json()["status"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("app", "arguments", "status", "kind", "text"),
    [
        ("acme/unknown", {}, 404, "model_not_found", "there is no app 'acme/unknown'"),
        ("acme/flux/pro", {}, 404, "model_not_found", "'flux_pro'"),
        ("acme/echo", {"n": 1 << 70}, 422, "invalid_input", "beyond 64 bits"),
        ("acme/picky", {}, 422, "value_error", "no such size"),
        ("acme/broken", {}, 500, "runner_server_error", "out of memory"),
    ],
)
async def test_errors_reach_the_client(
    tmp_path: Path, authority: Path, app: str, arguments: dict[str, Any], status: int, kind: str, text: str
) -> None:
    async with open_fal(tmp_path, authority) as site:
        for call in (site.client().subscribe, site.client().run):
            with pytest.raises(FalClientHTTPError) as caught:
                await call(app, arguments)
            error = caught.value
            assert error.status_code == status
            assert error.response.headers["x-fal-request-id"]
            body = error.response.json()
            assert text in body["message"]
            if status == 422:
                assert [set(each) for each in body["detail"]] == [{"loc", "msg", "type"}]
                assert body["detail"][0]["loc"][0] == "body"
            else:
                assert error.error_type == error.response.headers["x-fal-error-type"] == kind
                assert body["detail"] == body["message"]


async def test_a_request_that_does_not_start_in_time_fails_and_is_not_repeated(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site:
        client = site.client()
        running = await client.submit("acme/flux", {}, start_timeout=1.1)
        await site.endpoint.reaches(open=1)
        with pytest.raises(FalClientHTTPError) as caught:
            await client.subscribe("acme/flux", {}, start_timeout=1.1)
        assert caught.value.status_code == 504
        assert caught.value.error_type == "startup_timeout"
        assert caught.value.response_headers["x-fal-request-timeout-type"] == "user"
        request_id = caught.value.response_headers["x-fal-request-id"]
        job = await site.app.get(request_id)
        assert (job.error or {})["code"] == "RESOURCE_EXHAUSTED"
        status = await client.status("acme/flux", request_id)
        assert isinstance(status, Completed)
        assert status.error_type == "startup_timeout"
        assert len((await site.app.list_jobs()).data) == 2
        assert isinstance(await running.status(), InProgress), "a request that has started has no start timeout"
        again = await site.app.retry(request_id)
        site.endpoint.gate.set()
        assert (await site.app.wait(again.job_id)).status is JobStatus.COMPLETED


async def test_a_call_waits_for_its_result_and_a_stream_sends_each_chunk(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site:
        client = site.client()
        assert await client.run("acme/echo", SIZES) == {"echo": SIZES}
        words = [event async for event in client.stream("acme/talk", {"words": ["a", "b"]})]
        assert words == ["a", "b"]
        steps = [event async for event in client.stream("acme/improve", {})]
        assert steps == [{"step": 0}, {"step": 1}, {"done": True}]
        alone = [event async for event in client.stream("acme/echo", SIZES)]
        assert alone == [{"echo": SIZES}]


@pytest.mark.parametrize("path", ["/fal/run/acme/flux", "/fal/run/acme/flux/stream"])
async def test_the_job_of_a_client_that_disconnects_is_cancelled(tmp_path: Path, authority: Path, path: str) -> None:
    async with open_fal(tmp_path, authority) as site, site.http() as http:
        asked = asyncio.create_task(http.post(path, json={}))
        await site.endpoint.reaches(open=1)
        [job] = (await site.app.list_jobs()).data
        asked.cancel()
        assert (await site.app.wait(job.job_id)).status is JobStatus.CANCELLED


async def test_files_in_a_result_are_read_without_a_key(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority, admin_key=ADMIN) as site, site.http() as http:
        client = site.client((await site.app.create_key("user", user_id="ada")).text)
        result = await client.subscribe("acme/draw", {})
        [image] = result["images"]
        assert (image["content_type"], image["file_name"], image["file_size"]) == ("image/png", "a.png", 4)
        content = await http.get(image["url"])
        assert (content.content, content.headers["content-type"]) == (b"\x89PNG", "image/png")


async def test_a_chunk_shows_no_file_of_another_user(tmp_path: Path, authority: Path) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"secret"

    async with open_fal(tmp_path, authority) as site, site.http() as http:
        file = await site.app.files.save(NewFile("ada", "a.txt"), content())
        body = {"words": [f'{{"$file": "{file.id}"}}']}
        streamed = (await http.post("/fal/run/acme/parrot/stream", json=body)).text
    assert file.id in streamed
    assert "ticket=" not in streamed


async def test_a_user_has_its_own_requests_only(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority, admin_key=ADMIN) as site:
        ada = site.client((await site.app.create_key("user", user_id="ada")).text)
        bob = site.client((await site.app.create_key("user", user_id="bob")).text)
        service = site.client((await site.app.create_key("service", name="shop")).text)
        handle = await ada.submit("acme/flux", {}, priority="low")
        await site.endpoint.reaches(open=1)
        job = await site.app.get(handle.request_id)
        assert (job.user_id, job.priority.value) == ("ada", "low")
        named = await service.submit("acme/flux", {}, headers={"X-Fairlead-User": "cid"})
        assert (await site.app.get(named.request_id)).user_id == "cid"
        for use in (bob.status, bob.result, bob.cancel):
            with pytest.raises(FalClientHTTPError) as caught:
                await use("acme/flux", handle.request_id)
            assert caught.value.status_code == 404
        with pytest.raises(FalClientHTTPError) as caught:
            await ada.submit("acme/flux", {}, headers={"X-Fairlead-User": "bob"})
        assert caught.value.status_code == 403
        with pytest.raises(FalClientHTTPError) as caught:
            await site.client("wrong").submit("acme/flux", {})
        assert (caught.value.status_code, caught.value.error_type) == (401, "unauthorized")


async def _upload(site: FalSite, monkeypatch: pytest.MonkeyPatch, key: str, content: bytes) -> str:
    """Upload with the Python client, whose host of uploads is a constant."""
    monkeypatch.setattr(fal_client.client, "REST_URL", f"{site.url}/fal")
    settings = fal_client.StorageSettings(expires_in="1d")
    return await site.client(key).upload(content, "image/png", "cat.png", repository="fal", lifecycle=settings)


async def test_a_file_is_uploaded_and_its_url_needs_no_key(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_fal(tmp_path, authority, admin_key=ADMIN) as site, site.http() as http:
        key = (await site.app.create_key("user", user_id="ada")).text
        url = await _upload(site, monkeypatch, key, b"\x89PNG cat")
        assert (await http.get(url)).content == b"\x89PNG cat"
        file_id = url.rpartition("/")[2].partition("?")[0]
        file = await site.app.files.get(file_id)
        assert (file.user_id, file.name, file.content_type) == ("ada", "cat.png", "image/png")
        assert file.expires_at is not None
        given = await site.client(key).run("acme/echo", {"image_url": url})
        assert given == {"echo": {"image_url": url}}


async def test_a_file_may_be_part_of_the_input(tmp_path: Path, authority: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG cat")
    async with open_fal(tmp_path, authority) as site:
        given = await site.client().run("acme/echo", {"image": fal_client.encode_file(tmp_path / "cat.png")})
        assert base64.b64decode(given["echo"]["image"].partition(",")[2]) == b"\x89PNG cat"


async def test_a_poll_that_the_database_cannot_answer_is_retried_by_the_client(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_fal(tmp_path, authority) as site:
        handle = await site.client().submit("acme/echo", SIZES)
        read, failures = Jobs.status, 2

        async def status(self: Jobs, job_id: str) -> Any:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise Unavailable("the database is away")
            return await read(self, job_id)

        monkeypatch.setattr(Jobs, "status", status)
        assert await handle.get() == {"echo": SIZES}
        assert failures < 0


async def test_a_status_is_202_until_the_request_has_ended(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site:
        handle = await site.client().submit("acme/flux", {})
        context = httpx.create_ssl_context()
        async with httpx.AsyncClient(verify=context) as http:
            answer = await http.get(handle.status_url)
            assert (answer.status_code, answer.headers["x-fal-request-id"]) == (202, handle.request_id)
            site.endpoint.gate.set()
            await handle.get()
            answer = await http.get(handle.status_url)
            assert answer.status_code == 200
            assert {"request_id", "response_url", "status_url", "cancel_url", "logs", "metrics"} < set(answer.json())
