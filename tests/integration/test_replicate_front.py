"""Replicate's client for Python, unmodified, against the gateway: predictions, models, files, webhooks, errors."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.domain.replicate import version_of
from fairlead.gateway import request_parsing
from fairlead.gateway.fronts.replicate import files, requests, routes
from tests.integration.replicate_site import PNG, Site, client_of, open_site, replicate
from tests.webhook_receiver import receiver

PATIENCE_S = 30.0


@pytest.fixture
async def site(engines: dict[str, str]) -> AsyncIterator[Site]:
    async with open_site(engines) as opened:
        yield opened


@pytest.fixture
async def small_site(embedded: dict[str, str]) -> AsyncIterator[Site]:
    """On one engine, for what does not depend on it."""
    async with open_site(embedded) as opened:
        yield opened


async def soon(prediction: Any, status: str, logs: str = "") -> Any:
    """The prediction, once it has this status, and logs that begin so. Progress is stored after a moment."""
    async with asyncio.timeout(PATIENCE_S):
        while prediction.status != status or not prediction.logs.startswith(logs):
            await asyncio.sleep(0.02)
            await prediction.async_reload()
    return prediction


async def read(site: Site, url: str) -> bytes:
    """A file by its URL, without a key."""
    async with site.http() as http:
        response = await http.get(url)
    assert response.status_code == 200, response.text
    return response.content


# ---------------------------------------------------------------- predictions


async def test_run_returns_the_output(site: Site) -> None:
    url = await site.client.async_run("acme/flux", input={"prompt": "cat"})
    assert url.startswith(f"{site.base}/files/file-")
    assert await read(site, url) == PNG + b"cat"
    for version in (version_of("draw"), "39ed52f2"):
        assert await read(site, await site.client.async_run(f"acme/old:{version}", input={})) == PNG

    def blocking() -> Any:
        with client_of(site.base) as client:
            return client.run("fairlead/many", input={}), client.run(f"any/many:{version_of('many')}")

    assert await asyncio.to_thread(blocking) == (["one\ntwo", "three"],) * 2


async def test_run_waits_longer_than_one_request_may_take(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to `Prefer: wait` says `starting`, although the job runs; otherwise the client returns None."""
    monkeypatch.setattr(requests, "WAIT_MARGIN_S", 9.5)  # a slow machine must answer before the client gives up
    running = asyncio.create_task(site.client.async_run("acme/wait", input={"n": 7}, wait=10))
    await site.entered.wait()
    while not (page := await site.client.predictions.async_list()).results:
        await asyncio.sleep(0.02)
    prediction = await soon(page.results[0], "processing", "step 38\n")
    assert prediction.progress.percentage == 0.76
    await asyncio.sleep(1.0)  # the request of the client is answered
    assert not running.done()
    site.gate.set()
    assert await running == {"n": 7}


async def test_a_prediction_from_its_creation_to_its_end(site: Site) -> None:
    client = site.client
    first = await client.predictions.async_create(model="acme/wait", input={"n": 1})
    await site.entered.wait()
    second = await client.predictions.async_create(version_of("wait"), {"n": 2})
    assert (second.status, second.model, second.version) == ("starting", "fairlead/wait", version_of("wait"))
    await soon(second, "starting", "queued, position 1")
    assert (second.output, second.error, second.started_at, second.completed_at) == (None, None, None, None)
    await soon(first, "processing")
    site.gate.set()
    await second.async_wait()
    await first.async_reload()
    assert (first.status, first.output, first.input) == ("succeeded", {"n": 1}, {"n": 1})
    assert 0 <= first.metrics["predict_time"] <= first.metrics["total_time"]
    assert first.created_at <= first.started_at <= first.completed_at
    assert (await client.predictions.async_get(first.id)).dict() == {**first.dict(), "urls": ANY_URLS}
    await second.async_cancel()
    assert second.status == "succeeded", "a late cancel changes nothing"


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True


ANY_URLS: Any = _Anything()  # tickets differ


async def test_predictions_are_cancelled_while_they_wait_and_while_they_run(site: Site) -> None:
    first = await site.client.predictions.async_create(model="acme/wait", input={})
    await site.entered.wait()
    second = await site.client.predictions.async_create(model="acme/wait", input={})
    await second.async_cancel()
    assert (second.status, second.started_at) == ("canceled", None)
    await first.async_cancel()
    assert first.status == "canceled"
    assert (await site.app.get(first.id)).status == "CANCELLED"


async def test_cancel_after_is_a_deadline(small_site: Site) -> None:
    site = small_site
    async with site.http() as http:
        headers = {"Cancel-After": "5s", "Prefer": "wait=30"}
        body = {"input": {}}
        created = await http.post("/models/acme/wait/predictions", json=body, headers=headers)
        assert created.json()["status"] == "canceled"
        assert created.json()["error"] == "the job's deadline passed before it was done"
        refused = await http.post("/models/acme/wait/predictions", json=body, headers={"Cancel-After": "soon"})
    assert (refused.status_code, refused.json()["pointer"]) == (422, "/Cancel-After")


async def test_predictions_are_listed_page_by_page(small_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site = small_site
    monkeypatch.setattr(routes, "PAGE", 2)
    await site.app.submit("many", user_id="ada")  # a job that came another way
    for n in range(4):
        await site.client.async_run("acme/flux", input={"prompt": f"{n}"})
    pages = [page async for page in replicate.pagination.async_paginate(site.client.predictions.async_list)]
    assert [len(page) for page in pages] == [2, 2, 1]
    shown = [(each.model, each.input) for page in pages for each in page]
    assert shown == [*(("acme/flux", {"prompt": f"{n}"}) for n in (3, 2, 1, 0)), ("fairlead/many", {})]


async def test_models_versions_and_deployments(small_site: Site) -> None:
    client = small_site.client
    model = await client.models.async_get("acme/flux")
    assert (model.id, model.latest_version.id) == ("acme/flux", version_of("draw"))
    names = [model.id for model in await client.models.async_list()]
    assert names == ["acme/flux", "acme/llama", "acme/old", "fairlead/wait", "fairlead/broken", "fairlead/many"]
    deployment = await client.deployments.async_get("acme/flux")
    prediction = await deployment.predictions.async_create(input={"prompt": "dog"})
    await prediction.async_wait()
    assert (prediction.status, prediction.model) == ("succeeded", "acme/flux")
    assert (await client.accounts.async_current()).username == "anonymous"


async def test_errors_are_what_the_client_reads(small_site: Site) -> None:
    client = small_site.client
    with pytest.raises(replicate.exceptions.ModelError, match="this input will never work"):
        await client.async_run("acme/broken", input={})
    for call, status, text in (
        (client.async_run("acme/nothing", input={}), 404, "no pipeline or service called 'nothing'"),
        (client.async_run("acme/draw:0000", input={}), 422, "there is no version '0000'"),
        (client.async_run("acme/nothing:0000", input={}), 422, "there is no version '0000'"),
        (client.predictions.async_get("no-uuid"), 422, "valid UUID"),
        (client.predictions.async_get("01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f"), 404, "there is no job"),
        (client.async_run("acme/draw", input={}, webhook="ftp://x"), 422, "must begin with https"),
        (client.async_run("acme/draw", input={}, webhook="https://x", webhook_events_filter=["x"]), 422, "start"),
    ):
        with pytest.raises(replicate.exceptions.ReplicateError) as caught:
            await call
        assert caught.value.status == status
        assert text in caught.value.detail
        assert caught.value.title


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ('"\\u0000"', 201),
        ("[" * 300 + "]" * 300, 422),
        ("[" * 5000 + "]" * 5000, 400),
        ("1" * 30, 422),
        ('{"$file": "file-0"}', 422),
        ('{"$file": "file-00000000000000000000000000000000"}', 422),
        ('{"$stored": "file-00000000000000000000000000000000"}', 201),
        ('"data:image/png;base64,%%%"', 201),
        ('"data:text/plain,hello"', 201),
        ("[" + ",".join(['"data:;base64,AA=="'] * 101) + "]", 422),
    ],
)
async def test_odd_inputs(small_site: Site, value: str, status: int) -> None:
    body = f'{{"input": {{"value": {value}}}}}'
    async with small_site.http() as http:
        headers = {"Content-Type": "application/json", "Idempotency-Key": "k", "Prefer": "wait"}
        response = await http.post("/models/acme/many/predictions", content=body, headers=headers)
    assert response.status_code == status, response.text
    if status == 422:
        assert response.json()["pointer"] == "/input"


# ---------------------------------------------------------------- files


async def test_files_go_in_as_uploads_and_as_data_uris(site: Site) -> None:
    client, picture = site.client, PNG + b"mine"
    for strategy in ("url", "base64"):
        file = io.BytesIO(picture)
        file.name = "cat.png"
        url = await client.async_run("acme/flux", input={"image": file, "prompt": "!"}, file_encoding_strategy=strategy)
        assert await read(site, url) == picture + b"!"
    page = await client.predictions.async_list()
    assert all(each.input["image"].startswith(f"{site.base}/files/file-") for each in page.results)
    # The output of one prediction is the input of another.
    assert await read(site, await client.async_run("acme/flux", input={"image": url})) == picture + b"!"


async def test_uploads_are_listed_read_and_deleted(small_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    files_ = small_site.client.files
    monkeypatch.setattr(files, "PAGE", 1)
    first = await files_.async_create(io.BytesIO(PNG), filename="a.png", metadata={"of": "ada"})
    assert (first.name, first.content_type, first.size, first.metadata) == (
        "a.png",
        "image/png",
        len(PNG),
        {"of": "ada"},
    )
    assert first.expires_at > first.created_at
    second = await files_.async_create(io.BytesIO(b"text"), filename="b.txt")
    assert (await files_.async_get(first.id)).checksums == first.checksums
    assert [file.id for file in await files_.async_list()] == [second.id]
    async with small_site.http() as http:
        following = (await http.get("/files")).json()["next"]
        assert [file["id"] for file in (await http.get(following)).json()["results"]] == [first.id]
    assert await files_.async_delete(first.id)
    with pytest.raises(replicate.exceptions.ReplicateError, match="404"):
        await files_.async_get(first.id)


async def test_a_large_input_may_consist_of_files(small_site: Site) -> None:
    picture = PNG * 20_000  # 2.6 MB, above server.max_body
    file = io.BytesIO(picture)
    url = await small_site.client.async_run("acme/flux", input={"image": file}, file_encoding_strategy="base64")
    assert await read(small_site, url) == picture
    with pytest.raises(replicate.exceptions.ReplicateError, match="over 1048576 bytes"):
        await small_site.client.async_run("acme/flux", input={"prompt": "x" * 1_100_000})


async def test_a_large_input_without_files_is_refused_before_it_is_parsed(
    small_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing ten million small values would block the event loop for half a minute."""
    parsed: list[int] = []
    monkeypatch.setattr(request_parsing, "decode", lambda body: parsed.append(len(body)))
    bodies = [b'{"input":{"v":[%s]}}' % b",".join([each] * 800_000) for each in (b"{}", b'"data:,"', b'"\\"data:"')]
    unterminated = b'{"input":{"v":"%s' % (b'\\"data:' * 500_000)
    bodies += [unterminated, b""]
    async with small_site.http() as http:
        headers = {"Content-Type": "application/json"}
        answers = [await http.post("/models/acme/many/predictions", content=body, headers=headers) for body in bodies]
    assert [each.status_code for each in answers] == [413, 413, 413, 422, 422]
    assert parsed == [len(unterminated)]


async def test_large_outputs_are_not_listed(embedded: dict[str, str], tmp_path: Path) -> None:
    """A page of them could fill the memory. The prediction itself has its output."""
    artifacts = {"url": str(tmp_path / "objects"), "threshold": 1024, "max_inline": 8000}
    async with open_site(embedded, artifacts=artifacts) as site:
        texts = ["a" * 5000, "b" * 5000, "c" * 9000, "d" * 1000]
        for text in texts:
            site.talker.say(text, None)
            await (await site.client.predictions.async_create(model="acme/llama", input={})).async_wait()
        page = (await site.client.predictions.async_list()).results
        assert [each.output for each in page] == [texts[3], None, texts[1], None]
        whole = [(await site.client.predictions.async_get(each.id)).output for each in page]
        assert whole == texts[::-1]


# ---------------------------------------------------------------- webhooks


async def test_a_webhook_is_the_prediction_and_is_verified(site: Site) -> None:
    async with receiver() as hooks:
        prediction = await site.client.predictions.async_create(
            model="acme/flux", input={"image": io.BytesIO(PNG)}, webhook=hooks.url
        )
        got = await hooks.reaches(2)
        await prediction.async_wait()
    secret = await site.client.webhooks.default.async_secret()
    for request in got:
        replicate.webhook.Webhooks.validate(headers=dict(request.headers), body=request.text, secret=secret)
    started, ended = (request.body for request in got)
    assert (started["status"], started["output"], started["id"]) == ("processing", None, prediction.id)
    assert (ended["status"], ended["model"], ended["version"]) == ("succeeded", "acme/flux", version_of("draw"))
    assert ended["urls"]["get"] == f"{site.url}/predictions/{prediction.id}"
    assert await read(site, ended["output"]) == await read(site, ended["input"]["image"]) == PNG
    # The same as the client reads, but for the tickets of files.
    same = prediction.dict().keys() - {"input", "output", "urls"}
    assert {name: ended[name] for name in same} == {name: prediction.dict()[name] for name in same}


# ---------------------------------------------------------------- keys


async def test_keys(small_site: Site) -> None:
    site = small_site
    await site.app.create_key("admin")
    keys = {name: (await site.app.create_key("user", user_id=name)).text for name in ("ada", "bob")}
    viewer, service = [(await site.app.create_key(role)).text for role in ("viewer", "service")]
    async with site.http(keys["ada"]) as ada, site.http(keys["bob"]) as bob, site.http() as keyless:
        created = (await ada.post("/models/acme/many/predictions", json={}, headers={"Prefer": "wait"})).json()
        path, stream = f"/predictions/{created['id']}", created["urls"]["stream"]
        assert [(await each.get(path)).status_code for each in (ada, bob, keyless)] == [200, 404, 401]
        assert [len((await each.get("/predictions")).json()["results"]) for each in (ada, bob)] == [1, 0]
        assert [(await each.post(f"{path}/cancel")).status_code for each in (ada, bob, keyless)] == [200, 404, 401]
        token = await keyless.get(path, headers={"Authorization": f"Token {keys['ada']}"})
        assert token.status_code == 200
        upload = (await ada.post("/files", files={"content": ("a.txt", b"a")})).json()["id"]
        assert [(await each.get(f"/files/{upload}")).status_code for each in (ada, bob)] == [200, 404]
        stolen = await bob.post(
            "/models/acme/flux/predictions", json={"input": {"image": f"{site.url}/files/{upload}"}}
        )
        assert (stolen.status_code, stolen.json()["details"]) == (422, {"file": upload})
        # The ticket of a stream opens this stream and nothing else.
        assert "event: done" in (await keyless.get(stream)).text
        other = (await ada.post("/models/acme/many/predictions", json={})).json()["id"]
        for url in (stream[:-1], stream.replace(created["id"], other), stream.partition("?")[0]):
            assert (await keyless.get(url)).status_code == 401
        assert (await keyless.get(stream.replace("/stream", ""))).status_code == 401
    async with site.http(viewer) as looks, site.http(service) as serves:
        assert (await looks.get("/webhooks/default/secret")).status_code == 404
        assert (await looks.get(path)).status_code == 200
        named = {"X-Fairlead-User": "ada"}
        shown = (await serves.get("/webhooks/default/secret", headers=named)).json()
        assert shown["key"] == await site.app.webhooks.default_secret("ada")
        assert (await serves.get("/account", headers=named)).json()["username"] == "ada"
        by_service = await serves.post("/models/acme/many/predictions", json={}, headers=named)
        assert (await site.app.get(by_service.json()["id"])).user_id == "ada"


async def test_the_same_idempotency_key_is_one_prediction(small_site: Site) -> None:
    uri = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    async with small_site.http() as http:

        async def create(prompt: str) -> Any:
            body, headers = {"input": {"image": uri, "prompt": prompt}}, {"Idempotency-Key": "k1"}
            return (await http.post("/models/acme/flux/predictions", json=body, headers=headers)).json()

        first, again, other = [await create(prompt) for prompt in ("a", "a", "b")]
    assert first["id"] == again["id"]
    assert other["code"] == "idempotency_mismatch"


async def test_urls_follow_the_address_that_the_client_uses(small_site: Site) -> None:
    key = (await small_site.app.create_key("admin")).text
    headers = {"X-Forwarded-Proto": "https", "Host": "fairlead.example"}
    async with small_site.http(key) as http:
        created = await http.post("/models/acme/many/predictions", json={}, headers=headers)
    urls = created.json()["urls"]
    assert all(url.startswith("https://fairlead.example/replicate/v1/predictions/") for url in urls.values())
