"""Every invalid request gets its own typed error, and nothing is stored."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import orjson
import pytest

from fairlead.gateway.app import FastPath
from fairlead.gateway.permissions import CALLER, KEYLESS
from fairlead.gateway.problems import BodyTimeout
from fairlead.gateway.request_middleware import BodyLimit, RequestMiddleware
from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]

JSON = {"Content-Type": "application/json"}
GOOD = {"user_id": "ada", "feature_name": "echo", "input_data": {"n": 1}}


async def refused(site: Site, response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """Check that the response is this problem, and that nothing was stored."""
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = dict(response.json())
    assert problem["type"] == f"urn:fairlead:problem:{code}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    assert problem["retryable"] is False
    assert await site.job_ids() == []
    return problem


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"user_id": ""}, "/user_id"),
        ({"user_id": "u" * 1024}, "/user_id"),
        ({"user_id": "ada\nbob"}, "/user_id"),
        ({"user_id": "ada\x00"}, "/user_id"),
        ({"user_id": "ada\x1b[31m"}, "/user_id"),
        ({"user_id": "ada\u2028"}, "/user_id"),
        ({"user_id": "   "}, "/user_id"),
        ({"user_id": "\u00a0\u2003"}, "/user_id"),
        ({"user_id": "ada\u202ebob"}, "/user_id"),
        ({"user_id": "ada\u200b"}, "/user_id"),
        ({"user_id": "\ufeffada"}, "/user_id"),
        ({"user_id": 7.0}, "/user_id"),
        ({"user_id": True}, "/user_id"),
        ({"user_id": None}, "/user_id"),
        ({"feature_name": ["echo"]}, "/feature_name"),
        ({"feature_name": "e" * 1024}, "/feature_name"),
        ({"feature_name": "echo\r\n"}, "/feature_name"),
        ({"priority": "urgent"}, "/priority"),
        ({"priority": "HIGH"}, "/priority"),
        ({"priority": 1}, "/priority"),
        ({"priority": ["high"]}, "/priority"),
        ({"priority": {}}, "/priority"),
        ({"input_data": [1, 2]}, "/input_data"),
        ({"input_data": "text"}, "/input_data"),
        ({"metadata": "text"}, "/metadata"),
        ({"metadata": {"big": "x" * 20000}}, "/metadata"),
        ({"delay": -1}, "/delay"),
        ({"delay": 1e12}, "/delay"),
        ({"delay": "60"}, "/delay"),
        ({"delay": True}, "/delay"),
        ({"delay": 60, "scheduled_at": "2030-01-01T00:00:00Z"}, "/delay"),
        ({"scheduled_at": "tomorrow"}, "/scheduled_at"),
        ({"scheduled_at": 1900000000}, "/scheduled_at"),
        ({"scheduled_at": "9999-12-31T23:59:59Z"}, "/scheduled_at"),
        ({"scheduled_at": "0001-01-01T00:00:00+14:00"}, "/scheduled_at"),
        ({"deadline": 0}, "/deadline"),
        ({"deadline": -5}, "/deadline"),
        ({"deadline": "2001-01-01T00:00:00Z"}, "/deadline"),
        ({"deadline": 10, "delay": 60}, "/deadline"),
        ({"deadline": []}, "/deadline"),
        ({"cost": 0}, "/cost"),
        ({"cost": -1}, "/cost"),
        ({"cost": 1e300}, "/cost"),
        ({"cost": "much"}, "/cost"),
        ({"colour": "red"}, "/colour"),
        ({"region": 7}, "/region"),
        ({"region": "eu\x00"}, "/region"),
        ({"region": "e" * 64}, "/region"),
        ({"allowed_regions": ["eu\x00"]}, "/allowed_regions"),
        ({"allowed_regions": ["e" * 64]}, "/allowed_regions"),
        ({"allowed_regions": "eu"}, "/allowed_regions"),
        ({"allowed_regions": []}, "/allowed_regions"),
        ({"a/b~c": 1}, "/a~1b~0c"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_stored(
    still_site: Site, fields: dict[str, Any], pointer: str
) -> None:
    response = await still_site.client.post("/api/v1/jobs", json={**GOOD, **fields})
    problem = await refused(still_site, response, 422, "invalid_input")
    assert problem["pointer"] == pointer
    assert problem["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize("missing", ["user_id", "feature_name"])
async def test_a_missing_field_is_named(still_site: Site, missing: str) -> None:
    body = {name: value for name, value in GOOD.items() if name != missing}
    response = await still_site.client.post("/api/v1/jobs", json=body)
    problem = await refused(still_site, response, 422, "invalid_input")
    assert problem["pointer"] == f"/{missing}"


async def test_all_unknown_fields_are_named_at_once(still_site: Site) -> None:
    response = await still_site.client.post("/api/v1/jobs", json={**GOOD, "colour": 1, "size": 2})
    problem = await refused(still_site, response, 422, "invalid_input")
    assert [error["pointer"] for error in problem["errors"]] == ["/colour", "/size"]


async def test_an_unknown_pipeline_has_an_error_of_its_own_that_lists_the_known_ones(still_site: Site) -> None:
    response = await still_site.client.post("/api/v1/jobs", json={**GOOD, "feature_name": "ful_pipeline"})
    problem = await refused(still_site, response, 422, "unknown_feature")
    assert problem["pointer"] == "/feature_name"
    assert "echo_then_shout" in problem["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"user_id": "ada",}',
        b"user_id=ada&feature_name=echo",
        b'{"user_id": "\xff\xfe"}',
        b'{"user_id": "\\ud800", "feature_name": "echo"}',
        b"[" * 2000 + b"]" * 2000,
        b'{"user_id": "ada", "feature_name": "echo", "cost": 1e999}',
    ],
)
async def test_invalid_json_is_refused(still_site: Site, body: bytes) -> None:
    response = await still_site.client.post("/api/v1/jobs", content=body, headers=JSON)
    await refused(still_site, response, 400, "bad_json")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
async def test_nan_and_infinity_are_refused_by_name(still_site: Site, number: bytes) -> None:
    body = b'{"user_id": "ada", "feature_name": "echo", "input_data": {"n": ' + number + b"}}"
    response = await still_site.client.post("/api/v1/jobs", content=body, headers=JSON)
    problem = await refused(still_site, response, 400, "bad_json")
    assert "NaN and Infinity are not JSON" in problem["detail"]


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"7"])
async def test_json_other_than_an_object_is_refused(still_site: Site, body: bytes) -> None:
    response = await still_site.client.post("/api/v1/jobs", content=body, headers=JSON)
    await refused(still_site, response, 422, "invalid_input")


@pytest.mark.parametrize("depth", [101, 500, 1000])
@pytest.mark.parametrize("field", ["input_data", "metadata", "priority", "delay", "user_id"])
async def test_deeply_nested_json_is_refused(still_site: Site, field: str, depth: int) -> None:
    fields = {name: f'"{name}": "echo"' for name in ("user_id", "feature_name")}
    fields[field] = f'"{field}": ' + '{"a":' * depth + "1" + "}" * depth
    body = f"{{{', '.join(fields.values())}}}"
    headers = {**JSON, "Idempotency-Key": "deep"}
    response = await still_site.client.post("/api/v1/jobs", content=body, headers=headers)
    problem = await refused(still_site, response, 422, "invalid_input")
    assert problem["pointer"] == f"/{field}"
    bulk = f'{{"jobs": [{body}]}}'
    response = await still_site.client.post("/api/v1/jobs/bulk", content=bulk, headers=headers)
    problem = await refused(still_site, response, 422, "invalid_input")
    assert problem["pointer"] == f"/jobs/0/{field}"


async def test_input_of_the_maximum_depth_is_returned(site: Site) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    response = await site.client.post("/api/v1/jobs", json={**GOOD, "input_data": deep, "metadata": deep})
    assert response.status_code == 202, response.text
    job = (await site.client.get(response.headers["location"])).json()
    assert job["input_data"] == job["metadata"] == deep


@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "9" * 400, "9" * 5000])
async def test_an_integer_that_would_become_another_number_is_refused(still_site: Site, number: str) -> None:
    body = f'{{"user_id": "ada", "feature_name": "echo", "input_data": {{"ids": [1, {{"id": {number}}}]}}}}'
    for path, content, pointer in (
        ("/api/v1/jobs", body, "/input_data"),
        (
            "/api/v1/jobs/bulk",
            f'{{"jobs": [{{"user_id": "eve", "feature_name": "echo"}}, {body}]}}',
            "/jobs/1/input_data",
        ),
    ):
        response = await still_site.client.post(path, content=content, headers=JSON)
        if len(number) < 309:
            problem = await refused(still_site, response, 422, "invalid_input")
            assert problem["pointer"] == pointer
            assert "64 bits" in problem["detail"]
        else:  # not even a float
            await refused(still_site, response, 400, "bad_json")


async def test_long_numbers_that_fit_and_digits_in_text_are_kept(still_site: Site) -> None:
    sent = {"a": 18446744073709551615, "b": -9223372036854775808, "c": "9" * 500, "d": 0.12345678901234567}
    job_id = await still_site.submit(input_data=sent)
    assert (await still_site.client.get(f"/api/v1/jobs/{job_id}")).json()["input_data"] == sent


async def test_escapes_in_texts_are_decoded(still_site: Site) -> None:
    for fields, text in (
        ({"user_id": None}, "user_id must be text, not null"),
        ({"priority": 1}, "priority must be high, medium or low, not a number"),
        ({"delay": 1e12}, "delay must be 0 or more and at most 366 days"),
        ({"cost": 1e300}, "the cost must be more than 0 and at most 1000000000, not 1e+300"),
    ):
        response = await still_site.client.post("/api/v1/jobs", json={**GOOD, **fields})
        assert response.json()["detail"] == text


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
async def test_another_content_type_is_refused(still_site: Site, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    for path in ("/api/v1/jobs", "/api/v1/jobs/bulk"):
        response = await still_site.client.post(path, content=b"{}", headers=headers)
        await refused(still_site, response, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs", "/api/v1/jobs/bulk", "/api/v1/batches", "/api/v1/turns", "/inference"]
)
async def test_a_compressed_body_is_refused_by_the_name_of_its_encoding(still_site: Site, path: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = await still_site.client.post(path, content=gzip.compress(b"{}"), headers=headers)
    await refused(still_site, response, 415, "unsupported_media_type")
    assert "Content-Encoding: gzip" in response.json()["detail"]


async def test_the_encoding_of_a_body_may_be_identity(still_site: Site) -> None:
    response = await still_site.client.post("/api/v1/jobs", json=GOOD, headers={"Content-Encoding": "identity"})
    assert response.status_code == 202


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/ld+json"])
async def test_other_json_media_types_are_accepted(still_site: Site, content_type: str) -> None:
    content = b'{"user_id": "ada", "feature_name": "echo"}'
    response = await still_site.client.post("/api/v1/jobs", content=content, headers={"Content-Type": content_type})
    assert response.status_code == 202


async def test_a_body_over_the_limit_is_refused_with_or_without_content_length(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_body=2048)
    body = b'{"user_id": "ada", "feature_name": "echo", "input_data": {"x": "' + b"x" * 4096 + b'"}}'

    async def chunks() -> Any:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    for path in ("/api/v1/jobs", "/api/v1/jobs/bulk", "/admin/queue-dead/purge"):
        for content in (body, chunks()):
            response = await site.client.post(path, content=content, headers=JSON)
            problem = await refused(site, response, 413, "too_large")
            assert "2048" in problem["detail"]
            assert response.headers["connection"] == "close"


async def test_a_stalled_body_times_out(still_site: Site) -> None:
    app = BodyLimit(FastPath(still_site.gateway), max_body=1000, patience=0.05)
    sent: list[Any] = []

    async def receive() -> Any:
        if not pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": pieces.pop(), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    for length in ([], [(b"content-length", b"100")]):
        pieces = [b'"user_id"', b"{"]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/jobs",
            "headers": [(b"content-type", b"application/json"), *length],
            "app": still_site.gateway,
        }
        await RequestMiddleware(app)(scope, receive, send)
        start, body = sent
        assert start["status"] == 408
        assert (b"connection", b"close") in start["headers"]
        assert orjson.loads(body["body"])["code"] == "body_timeout"
        sent.clear()


async def test_a_body_may_arrive_in_chunks_with_pauses(still_site: Site) -> None:
    app = BodyLimit(FastPath(still_site.gateway), max_body=1000)
    whole = orjson.dumps(GOOD)
    pieces = [whole[:10], b"", whole[10:30], whole[30:]]
    sent: list[Any] = []

    async def receive() -> Any:
        for _ in range(len(pieces) % 3):
            await asyncio.sleep(0)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/jobs", "headers": headers, "app": still_site.gateway}
    await RequestMiddleware(app)({**scope, CALLER: KEYLESS}, receive, send)
    assert sent[0]["status"] == 202
    assert await still_site.job_ids() == [orjson.loads(sent[1]["body"])["job_id"]]


async def test_a_body_that_trickles_times_out() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while True:
            await receive()

    limited = BodyLimit(app, max_body=1000, patience=0.2)
    async with asyncio.timeout(20):
        with pytest.raises(BodyTimeout, match="less than 1024 bytes per second"):
            await limited({"type": "http", "path": "/", "headers": []}, receive, receive)


async def test_waiting_for_a_body_can_be_cancelled() -> None:
    waits, stopped = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    limited = BodyLimit(app, max_body=1000)({"type": "http", "path": "/", "headers": []}, receive, receive)
    request = asyncio.create_task(limited)
    await waits.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert stopped.is_set()


async def test_waiting_for_a_disconnect_has_no_timeout() -> None:
    silent = asyncio.Event()

    async def receive() -> Any:
        if silent.is_set():
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}
        silent.set()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        types.extend([(await receive())["type"] for _ in range(2)])

    types: list[str] = []
    await BodyLimit(app, max_body=1000, patience=0.01)({"type": "http", "path": "/", "headers": []}, receive, receive)
    assert types == ["http.request", "http.disconnect"]


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 5000, "abc"])
async def test_an_invalid_content_length_is_refused(still_site: Site, length: str) -> None:
    headers = {**JSON, "Content-Length": length}
    response = await still_site.client.post("/api/v1/jobs", content=b"{}", headers=headers)
    await refused(still_site, response, 413, "too_large")


@pytest.mark.parametrize("key", ["", "k" * 256, "caf\u00e9", "tab\there"])
async def test_an_idempotency_key_is_1_to_255_printable_characters(still_site: Site, key: str) -> None:
    headers = {b"Idempotency-Key": key.encode("latin-1")}
    response = await still_site.client.post("/api/v1/jobs", json=GOOD, headers=headers)
    problem = await refused(still_site, response, 422, "invalid_input")
    assert problem["pointer"] == "/Idempotency-Key"


async def test_two_idempotency_keys_are_refused(still_site: Site) -> None:
    headers = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")]
    response = await still_site.client.post("/api/v1/jobs", json=GOOD, headers=headers)
    problem = await refused(still_site, response, 422, "invalid_input")
    assert problem["pointer"] == "/Idempotency-Key"


@pytest.mark.parametrize("job_id", ["17", "no-id", "' OR 1=1 --", "0190d0c5-7b5a-7cc0-b1f0", "%00", "a%0Ab"])
async def test_an_invalid_job_id_is_refused_on_every_route(still_site: Site, job_id: str) -> None:
    url = f"/api/v1/jobs/{job_id}"
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("POST", "/resume"), ("DELETE", "")):
        response = await still_site.client.request(method, url + path)
        problem = await refused(still_site, response, 422, "invalid_input")
        assert problem["pointer"] == "/job_id"


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("limit=0", "/limit"),
        ("limit=501", "/limit"),
        ("limit=-1", "/limit"),
        ("limit=many", "/limit"),
        ("status=DONE", "/status"),
        ("status=pending", "/status"),
        ("cursor=elsewhere", "/cursor"),
        ("cursor=MTcuMTIzNDU2Nzg", "/cursor"),
        ("cursor=%C3%A9", "/cursor"),
        ("cursor=" + "A" * 1000, "/cursor"),
        ("user_id=" + "u" * 1024, "/user_id"),
        ("user_id=", "/user_id"),
        ("feature_name=&user_id=ada", "/feature_name"),
        ("state=PENDING", "/state"),
    ],
)
async def test_a_wrong_query_is_named(still_site: Site, query: str, pointer: str) -> None:
    for path in ("/api/v1/jobs", "/admin/queue-dead"):
        response = await still_site.client.get(f"{path}?{query}")
        problem = await refused(still_site, response, 422, "invalid_input")
        assert problem["pointer"] == pointer


@pytest.mark.parametrize(
    "query", ["/admin/queue-dead?service=", "/admin/queue-dead?error_code=", "/admin/audit?action="]
)
async def test_an_empty_filter_is_refused(still_site: Site, query: str) -> None:
    problem = await refused(still_site, await still_site.client.get(query), 422, "invalid_input")
    assert problem["pointer"] == f"/{query.partition('?')[2].rstrip('=')}"


async def test_a_cursor_of_another_list_is_refused(still_site: Site) -> None:
    for user in ("ada", "ada", "bob", "bob"):
        await still_site.submit(user_id=user)
    page = await still_site.client.get("/api/v1/jobs", params={"user_id": "ada", "limit": 1})
    cursor = page.json()["next_cursor"]
    response = await still_site.client.get("/api/v1/jobs", params={"user_id": "bob", "cursor": cursor})
    assert (response.status_code, response.json()["pointer"]) == (422, "/cursor")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"job_ids": ["17"]}, "/job_ids/0"),
        ({"job_ids": "all"}, "/job_ids"),
        ({"dry_run": "yes"}, "/dry_run"),
        ({"user_id": ""}, "/user_id"),
        ({"users": ["ada"]}, "/users"),
        ({"job_ids": [], "user_id": "ada"}, ""),
        ({"user_id": "ada", "all": True}, ""),
        ({"job_ids": [], "all": True}, ""),
        ({"all": "yes"}, "/all"),
        ({"all": False}, ""),
        ({"dry_run": True}, ""),
        ({}, ""),
        ([], ""),
    ],
)
async def test_an_invalid_selection_of_dead_letters_is_named(still_site: Site, body: Any, pointer: str) -> None:
    for action in ("purge", "requeue"):
        response = await still_site.client.post(f"/admin/queue-dead/{action}", json=body)
        problem = await refused(still_site, response, 422, "invalid_input")
        assert problem["pointer"] == pointer


async def test_dead_letters_must_be_selected_and_the_error_explains_how(still_site: Site) -> None:
    for content in (b"", b"{}"):
        response = await still_site.client.post("/admin/queue-dead/purge", content=content, headers=JSON)
        problem = await refused(still_site, response, 422, "invalid_input")
        assert problem["detail"].startswith("select jobs by job_ids")


async def test_a_long_invalid_value_is_shortened_in_the_error(still_site: Site) -> None:
    response = await still_site.client.post("/api/v1/jobs", json={**GOOD, "priority": "x" * 100_000})
    await refused(still_site, response, 422, "invalid_input")
    assert len(response.content) < 5000


async def test_unknown_routes_and_methods_are_problems_too(still_site: Site) -> None:
    await refused(still_site, await still_site.client.get("/api/v2/jobs"), 404, "no_such_route")
    await refused(still_site, await still_site.client.get("/api/v1/jobs/"), 404, "no_such_route")
    response = await still_site.client.put("/api/v1/jobs", json={})
    await refused(still_site, response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, POST"
    response = await still_site.client.get("/api/v1/jobs/bulk")
    await refused(still_site, response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
