"""A request ends with its key: whatever waits or streams is ended when the key is revoked or the session is closed.

Routes come from the router and from the API's own description, so that a new one that waits or streams is covered here
or fails the first test.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.gateway import batches, credentials
from fairlead.gateway.app import create_gateway
from fairlead.gateway.auth import Guard
from fairlead.gateway.permissions import (
    RULES,
    SHORT,
    SHORT_UNLESS_PREFERRED,
    Access,
    Lasts,
    all_routes,
    lasts,
    rule_of,
)
from fairlead.gateway.problems import Unauthorized
from tests.integration.gateway_site import Site
from tests.integration.http_client import Exchange, ask, asking

MakeSite = Callable[..., Awaitable[Site]]
PATIENCE_S = 20.0
GATEWAY = create_gateway(Fairlead(Settings(Config())))
ROUTES = sorted((method, path) for methods, path, _ in all_routes(GATEWAY.routes) for method in methods)
Route = tuple[str, str]

# How to make each route wait or stream, for a user whose job, batch or turn does not end.
WAITS: dict[Route, dict[str, Any]] = {
    ("POST", "/api/v1/jobs"): {"json": {"feature_name": "gated"}, "prefer": "wait=60"},
    ("GET", "/api/v1/jobs/{job_id}"): {"prefer": "wait=60"},
    ("GET", "/api/v1/batches/{batch_id}"): {"prefer": "wait=60"},
    ("GET", "/api/v1/turns/{turn_id}"): {"prefer": "wait=60"},
    ("POST", "/inference"): {"json": {"model": "gated", "timeout": 300}},
    ("POST", "/v1/chat/completions"): {"json": {"model": "gated"}},
    ("POST", "/v1/completions"): {"json": {"model": "gated", "stream": True}},
    ("POST", "/v1/embeddings"): {"json": {"model": "gated"}},
    ("POST", "/v1/images/generations"): {"json": {"model": "gated"}},
    ("POST", "/v1/responses"): {"json": {"model": "gated", "stream": True}},
    ("POST", "/v1/{path}"): {"json": {"model": "gated"}},
    ("POST", "/replicate/v1/predictions"): {"json": {"version": "acme/shout"}, "prefer": "wait"},
    ("POST", "/replicate/v1/models/{owner}/{name}/predictions"): {"json": {}, "prefer": "wait=60"},
    ("POST", "/replicate/v1/deployments/{owner}/{name}/predictions"): {"json": {}, "prefer": "wait=60"},
    ("POST", "/fal/run/{app}"): {"json": {}},
}
STREAMS: list[Route] = [
    ("GET", "/api/v1/jobs/{job_id}/events"),
    ("GET", "/api/v1/jobs/{job_id}/output"),
    ("GET", "/api/v1/batches/{batch_id}/events"),
    ("GET", "/api/v1/turns/{turn_id}/events"),
    ("GET", "/replicate/v1/predictions/{job_id}/stream"),
    ("GET", "/fal/{app}/requests/{job_id}/status/stream"),
    ("WS", "/ws"),
    ("WS", "/ws/{job_id}"),
    ("WS", "/ws/dashboard"),
]
RESULTS = ("GET", "/api/v1/batches/{batch_id}/results")
USAGE = ("GET", "/api/v1/usage")  # streams rows as RESULTS does; the test of every handler cuts it


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "RENEW_AFTER_S", 0.05)
    monkeypatch.setattr(credentials, "SESSION_KEEP_S", 0.02)
    monkeypatch.setattr(credentials, "SESSION_CHECK_EVERY_S", 0.05)


def each(routes: Any) -> pytest.MarkDecorator:
    routes = sorted(routes)
    return pytest.mark.parametrize(("method", "path"), routes, ids=[f"{method} {path}" for method, path in routes])


def waiting_by_description() -> set[Route]:
    """Return the routes whose documentation mentions waiting or streaming."""
    found = {(method, path) for method, path in ROUTES if method == "WS"}
    shapes = GATEWAY.openapi()["components"]["schemas"]
    for path, methods in GATEWAY.openapi()["paths"].items():
        for method, about in methods.items():
            content = about["responses"].get("200", {}).get("content", {})
            wanted = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            fields = shapes.get(wanted.get("$ref", "").rpartition("/")[2], {}).get("properties", {})
            if (
                any(parameter.get("name") == "Prefer" for parameter in about.get("parameters", ()))
                or content.keys() & {"text/event-stream", "application/x-ndjson", "application/jsonl"}
                or "timeout" in fields
            ):
                found.add((method.upper(), path))
    return found


def test_every_route_that_waits_or_streams_is_covered() -> None:
    tried = {*WAITS, *STREAMS, RESULTS, USAGE}
    assert waiting_by_description() == tried
    assert {route for route in ROUTES if lasts(*route) is Lasts.IF_PREFERRED} <= tried
    assert not tried & SHORT


@each(SHORT | SHORT_UNLESS_PREFERRED)
def test_only_short_writes_outlive_their_key(method: str, path: str) -> None:
    assert method in ("POST", "PUT", "DELETE")
    assert (method, path) in RULES


# ---------------------------------------------------------------- the guard, with every route


def lasting() -> list[Route]:
    return [route for route in ROUTES if lasts(*route) is Lasts.ALWAYS and rule_of(*route) is not Access.OPEN]


@pytest.mark.parametrize("begun", [False, True])
async def test_any_handler_ends_with_its_key(still_site: Site, begun: bool) -> None:
    """All routes at once, with handlers that never return, so that new routes are covered."""
    await still_site.app.create_key("admin")
    key = await still_site.app.create_key("admin")
    inside, left = 0, 0

    async def forever(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal inside, left
        if begun and scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
        elif begun:
            await send({"type": "websocket.accept"})
        inside += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            left += 1

    guard = Guard(forever, fairlead=still_site.app, routes=GATEWAY.routes, host="localhost", allowed_origins=[])
    exchanges = {route: opened(guard, *route, key.text) for route in lasting()}
    async with asyncio.timeout(PATIENCE_S):
        while inside < len(exchanges):
            await asyncio.sleep(0.01)
        await still_site.app.revoke_key(key.key.id)
        ended = {route: await task for route, task in exchanges.items()}
    assert left == inside
    for route, exchange in ended.items():
        if not begun:
            assert (exchange.status, exchange.code) == (401, "unauthorized"), route
        elif route[0] == "WS":
            assert exchange.messages[-1] == {"type": "websocket.close", "code": 4401, "reason": "the key was revoked"}
        else:
            assert exchange.body == b"first", route
            assert exchange.messages[-1]["more_body"], "a response that was cut off must not look complete"


def opened(guard: Any, method: str, path: str, key: str) -> asyncio.Task[Exchange]:
    exchange = Exchange()

    async def run() -> Exchange:
        scope: Scope = {
            "type": "websocket" if method == "WS" else "http",
            "path": path.replace("{job_id}", UNKNOWN).replace("{batch_id}", UNKNOWN).replace("{turn_id}", UNKNOWN),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer " + key.encode())],
            "server": ("127.0.0.1", 8000),
            "extensions": {"websocket.http.response": {}},
            **({} if method == "WS" else {"method": method}),
        }

        async def send(message: Message) -> None:
            exchange.record(message)

        with contextlib.suppress(Unauthorized):  # the server then closes the connection
            await guard(scope, _silent, send)
        return exchange

    return asyncio.create_task(run())


UNKNOWN = "01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f"


async def _silent() -> Message:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


# ---------------------------------------------------------------- the routes themselves


class Waiting:
    """A site where nothing ends, with a key, a job, a batch and a turn of ada."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.app = site.app
        self.key = ""
        self.key_id = ""

    async def prepare(self) -> None:
        await self.app.create_key("admin")
        made = await self.app.create_key("user", user_id="ada")
        self.key, self.key_id = made.text, made.key.id
        assert (await ask(self.site.gateway, "GET", "/session", self.key)).status == 200  # the middleware is built
        first = await self.app.turns.open("slot", "bob")
        await self.app.turns.wait(first.turn_id, 10)  # holds the only slot
        await self.app.pause("shout")

    async def filled(self, path: str) -> str:
        if "{job_id}" in path:
            path = path.replace("{job_id}", (await self.app.submit("gated", user_id="ada")).id)
        if "{batch_id}" in path:
            items = [{"feature_name": "gated"} for _ in range(250)]
            path = path.replace("{batch_id}", (await self.app.submit_batch(items, user_id="ada")).id)
        if "{turn_id}" in path:
            path = path.replace("{turn_id}", (await self.app.turns.open("slot", "ada")).turn_id)
        named = path.replace("{owner}/{name}", "acme/shout").replace("{app}", "gated")
        return named.replace("{path}", "moderations")

    async def admitted(self, number: int = 1) -> None:
        ring = self.site.gateway.state.guard.key_cache
        async with asyncio.timeout(PATIENCE_S):
            while len(ring._streams) < number:
                await asyncio.sleep(0.01)


@pytest.fixture
async def waiting(site: Site) -> Waiting:
    made = Waiting(site)
    await made.prepare()
    return made


@each(WAITS)
async def test_a_request_that_waits_is_a_401_when_its_key_is_revoked(waiting: Waiting, method: str, path: str) -> None:
    options = WAITS[method, path]
    gateway, filled = waiting.site.gateway, await waiting.filled(path)
    asked = asyncio.create_task(ask(gateway, method, filled, waiting.key, **options))
    await waiting.admitted()
    assert not asked.done()
    await waiting.app.revoke_key(waiting.key_id)
    exchange = await asked
    assert (exchange.status, exchange.code) == (401, "unauthorized")
    assert "the key was revoked" in str(exchange.json)


@each(STREAMS)
async def test_a_stream_ends_when_its_key_is_revoked(waiting: Waiting, method: str, path: str) -> None:
    async with asking(waiting.site.gateway, method, await waiting.filled(path), waiting.key) as stream:
        assert stream.status in (101, 200)
        await waiting.app.revoke_key(waiting.key_id)
        async with asyncio.timeout(PATIENCE_S):
            await stream.ended.wait()
        last = stream.messages[-1]
        if method == "WS":
            assert last == {"type": "websocket.close", "code": 4401, "reason": "the key was revoked"}
        else:
            assert stream.body.endswith(b": ended, unauthorized\n\n")
            assert not last["more_body"]


@each([("GET", "/api/v1/jobs/{job_id}/events"), ("WS", "/ws"), ("WS", "/ws/dashboard")])
async def test_a_stream_of_a_browser_ends_when_it_signs_out(waiting: Waiting, method: str, path: str) -> None:
    gateway = waiting.site.gateway
    signed_in = await ask(gateway, "POST", "/session", json={"key": waiting.key})
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    own = {"cookie": cookie, "origin": "http://localhost"}
    async with asking(gateway, method, await waiting.filled(path), **own) as stream:
        assert stream.status in (101, 200)
        assert (await ask(gateway, "DELETE", "/session", **own)).status == 204
        async with asyncio.timeout(PATIENCE_S):
            await stream.ended.wait()
        assert stream.messages[-1].get("code") == 4401 or stream.body.endswith(b": ended, unauthorized\n\n")


async def test_a_wait_of_a_browser_ends_when_it_signs_out(waiting: Waiting) -> None:
    gateway = waiting.site.gateway
    signed_in = await ask(gateway, "POST", "/session", json={"key": waiting.key})
    own = {"cookie": signed_in.headers["set-cookie"].partition(";")[0], "origin": "http://localhost"}
    path = await waiting.filled("/api/v1/batches/{batch_id}")
    asked = asyncio.create_task(ask(gateway, "GET", path, prefer="wait=60", **own))
    await waiting.admitted()
    await ask(gateway, "DELETE", "/session", **own)
    exchange = await asked
    assert (exchange.status, exchange.json["detail"]) == (401, "the session has ended")


async def test_results_are_cut_off_when_the_key_is_revoked_while_they_are_read(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PIECE", 1000)  # bytes, less than the whole response
    path = await waiting.filled(RESULTS[1])
    reading = asyncio.Event()

    async def slowly(message: Message) -> None:
        if message.get("more_body") and message["body"]:
            reading.set()
            await asyncio.get_running_loop().create_future()  # the client stops reading

    asked = asyncio.create_task(ask(waiting.site.gateway, "GET", path, waiting.key, on_send=slowly))
    async with asyncio.timeout(PATIENCE_S):
        await reading.wait()
        await waiting.app.revoke_key(waiting.key_id)
        exchange = await asked
    assert exchange.status == 200
    lines = exchange.body.splitlines()
    assert 0 < len(lines) < 250
    assert exchange.messages[-1]["more_body"], "a list that was cut off must not look complete"


async def test_a_key_that_revokes_itself_gets_a_response(site: Site) -> None:
    await site.app.create_key("admin")
    key = await site.app.create_key("admin")
    assert (await ask(site.gateway, "DELETE", f"/admin/keys/{key.key.id}", key.text)).status == 204
