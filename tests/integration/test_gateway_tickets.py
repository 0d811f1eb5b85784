"""Tickets, WebSockets and several gateways: where a key is valid, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.engine.clock import SystemClock
from fairlead.gateway.app import create_gateway
from fairlead.gateway.auth import Guard
from fairlead.gateway.permissions import RULES, Access, caller_of
from tests.integration.gateway_site import Gate, Site, declare_services
from tests.integration.http_client import ask, asking
from tests.integration.key_site import ECHO, JOBS, PATIENCE_S, SOCKET, MakeSite, keys_of, until


def with_socket(app: Fairlead) -> FastAPI:
    """A gateway with a WebSocket that sends its caller."""
    gateway = create_gateway(app)

    async def whoami(websocket: WebSocket) -> None:
        await websocket.accept()
        caller = caller_of(websocket)
        await websocket.send_json({"role": caller.role, "user_id": caller.user_id, "name": caller.name})
        await websocket.receive()

    gateway.add_api_websocket_route(SOCKET, whoami)
    return gateway


@pytest.fixture(autouse=True)
def rule_of_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, ("WS", SOCKET), Access.ANY)


# ---------------------------------------------------------------- several gateways


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("database")


@pytest.fixture
async def two_apps(url: str) -> AsyncIterator[tuple[Fairlead, Fairlead]]:
    """Two apps on one database, like two processes."""
    async with AsyncExitStack() as stack:
        apps = []
        for _ in range(2):
            app = Fairlead(Settings(Config(), url))
            declare_services(app, Gate())
            apps.append(await stack.enter_async_context(app))
        yield apps[0], apps[1]


async def test_a_key_is_valid_at_every_gateway_at_once_and_revoked_within_a_second(
    two_apps: tuple[Fairlead, Fairlead],
) -> None:
    here, there = two_apps
    elsewhere = create_gateway(there)
    assert (await ask(elsewhere, "GET", JOBS)).status == 200
    await here.create_key("admin")
    new = await here.create_key("user", user_id="ada")
    assert (await ask(elsewhere, "GET", JOBS, new.text)).status == 200
    assert (await ask(elsewhere, "GET", JOBS)).status == 401
    job = await here.submit("echo", user_id="ada")
    async with asking(elsewhere, "GET", f"{JOBS}/{job.id}/events", new.text) as stream:
        assert stream.status == 200
        await here.revoke_key(new.key.id)

        async def refused() -> bool:
            return (await ask(elsewhere, "GET", JOBS, new.text)).status == 401

        await until(refused)
        async with asyncio.timeout(PATIENCE_S):
            await stream.ended.wait()
        assert b"".join(stream.messages[n]["body"] for n in (-2, -1)).endswith(b": ended, unauthorized\n\n")
        assert stream.messages[-1]["more_body"] is False, "closed in order, not cut off"


async def test_a_ticket_is_valid_once_over_all_gateways(two_apps: tuple[Fairlead, Fairlead]) -> None:
    gateways = [with_socket(app) for app in two_apps]
    keys = await keys_of(two_apps[0])
    ticket = await ask(gateways[0], "POST", "/api/v1/tickets", keys["ada"])
    assert (ticket.status, ticket.json["expires_in"]) == (201, 60)
    query = f"ticket={ticket.json['ticket']}"
    answers = await asyncio.gather(*(ask(gateways[n % 2], "WS", SOCKET, query=query) for n in range(20)))
    assert sorted(each.status for each in answers) == [101] + [401] * 19


# ---------------------------------------------------------------- tickets


async def opened(gateway: FastAPI, query: str, **options: Any) -> Any:
    """Return the caller that the socket sends, or the status of the refusal."""
    async with asking(gateway, "WS", SOCKET, query=query, **options) as exchange:
        if exchange.status != 101:
            return exchange.status
        async with asyncio.timeout(PATIENCE_S):
            while len(exchange.messages) < 2:
                await asyncio.sleep(0.005)
        return exchange.messages[1]["text"]


async def test_a_ticket_has_the_rights_of_its_key_or_of_one_user(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)

    async def ticket(caller: str, **body: str) -> str:
        made = await ask(gateway, "POST", "/api/v1/tickets", keys[caller], json=body)
        assert made.status == 201
        return f"ticket={made.json['ticket']}"

    assert await opened(gateway, await ticket("ada")) == '{"role":"user","user_id":"ada","name":"ada"}'
    assert await opened(gateway, await ticket("service")) == '{"role":"service","user_id":null,"name":"web shop"}'
    assert await opened(gateway, await ticket("service", user_id="a:b")) == (
        '{"role":"user","user_id":"a:b","name":"web shop"}'
    )
    foreign = await ask(gateway, "POST", "/api/v1/tickets", keys["ada"], json={"user_id": "bob"})
    assert (foreign.status, foreign.code) == (403, "forbidden")


async def test_a_ticket_of_one_user_does_not_show_other_jobs(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    job = await still_site.app.submit("echo", user_id="ada")
    for user, status in (("ada", 200), ("bob", 404)):
        made = await ask(still_site.gateway, "POST", "/api/v1/tickets", keys["service"], json={"user_id": user})
        query = f"ticket={made.json['ticket']}"
        answer = await ask(still_site.gateway, "GET", f"{JOBS}/{job.id}/events", query=query)
        assert answer.status == status


async def test_a_ticket_is_valid_for_streams_only(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    made = await ask(still_site.gateway, "POST", "/api/v1/tickets", keys["admin"])
    query = f"ticket={made.json['ticket']}"
    job = await still_site.app.submit("echo", user_id="ada")
    for method, path in (("GET", JOBS), ("GET", f"{JOBS}/{job.id}"), ("POST", JOBS), ("GET", "/admin/keys")):
        assert (await ask(still_site.gateway, method, path, query=query)).status == 401
    assert (await ask(still_site.gateway, "GET", f"{JOBS}/{job.id}/events", query=query)).status == 200
    again = await ask(still_site.gateway, "GET", f"{JOBS}/{job.id}/events", query=query)
    assert (again.status, again.code) == (401, "unauthorized")


@pytest.mark.parametrize("query", ["ticket=", "ticket=flt_1", "ticket={0}&ticket={0}", "xticket={0}", "ticket=%00"])
async def test_an_invalid_ticket_is_refused(still_site: Site, query: str) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)
    made = await ask(gateway, "POST", "/api/v1/tickets", keys["admin"])
    assert await opened(gateway, query.format(made.json["ticket"])) == 401


async def test_a_ticket_expires_after_a_minute(still_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)
    made = await ask(gateway, "POST", "/api/v1/tickets", keys["ada"])
    later = SystemClock()
    monkeypatch.setattr(later, "now", lambda: SystemClock().now() + 61)
    monkeypatch.setattr(still_site.app._runtime, "clock", later)
    assert await opened(gateway, f"ticket={made.json['ticket']}") == 401


async def test_revoking_a_key_revokes_its_tickets(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)
    new = await still_site.app.create_key("service")
    tickets = [
        (await ask(gateway, "POST", "/api/v1/tickets", new.text, json=body)).json["ticket"]
        for body in ({}, {"user_id": "ada"})
    ]
    assert (await ask(gateway, "DELETE", f"/admin/keys/{new.key.id}", keys["admin"])).status == 204
    assert [await opened(gateway, f"ticket={ticket}") for ticket in tickets] == [401, 401]


async def test_a_keyless_ticket_is_invalid_once_there_are_keys(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    before = await ask(gateway, "POST", "/api/v1/tickets")
    assert before.status == 201
    assert '"name":"keyless"' in await opened(gateway, f"ticket={before.json['ticket']}")
    made = await ask(gateway, "POST", "/admin/keys", json={"role": "admin"})
    assert made.status == 201
    assert await opened(gateway, f"ticket={before.json['ticket']}") == 401


@pytest.mark.parametrize("query", ["key={}", "access_token={}", "x=fl%5F{}", "{}"])
async def test_a_key_in_a_url_is_refused_even_with_a_valid_header(still_site: Site, query: str) -> None:
    keys = await keys_of(still_site.app)
    text = query.format(keys["ada"]) if "%5F" not in query else query.format(keys["ada"].removeprefix("fl_"))
    for header in (None, keys["ada"]):
        answer = await ask(still_site.gateway, "GET", JOBS, header, query=text)
        assert (answer.status, answer.code) == (401, "unauthorized")
        assert "revoke" in answer.json["detail"]
    assert await opened(with_socket(still_site.app), text, key=keys["ada"]) == 401


async def test_a_session_gets_no_ticket(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    signed_in = await ask(still_site.gateway, "POST", "/session", json={"key": keys["ada"]})
    own = {"cookie": signed_in.headers["set-cookie"].partition(";")[0], "origin": "http://localhost"}
    refused = await ask(still_site.gateway, "POST", "/api/v1/tickets", **own)
    assert (refused.status, refused.code) == (403, "forbidden")


async def test_a_viewer_s_ticket_takes_no_slot(site: Site) -> None:
    await site.app.create_key("admin")
    viewer = await site.app.create_key("viewer")
    turn = await site.app.turns.open("slot", "ada")
    made = await ask(site.gateway, "POST", "/api/v1/tickets", viewer.text, json={"user_id": "ada"})
    query = f"ticket={made.json['ticket']}"
    async with asking(site.gateway, "GET", f"/api/v1/turns/{turn.turn_id}/events", query=query) as watched:
        assert watched.status == 200
        second = await site.app.turns.open("slot", "bob")
        assert (await site.app.turns.wait(second.turn_id, PATIENCE_S)).status == "RUNNING"
        assert (await site.app.turns.get(turn.turn_id)).started_at is None, "it never had the slot"


# ---------------------------------------------------------------- WebSockets


async def test_a_websocket_needs_a_key_and_an_allowed_origin(make_site: MakeSite) -> None:
    site = await make_site(running=False, allowed_origins=["https://app.example"])
    gateway = with_socket(site.app)
    assert '"name":"keyless"' in await opened(gateway, "")
    assert await opened(gateway, "", origin="https://evil.example") == 403
    assert await opened(gateway, "", host="evil.example") == 421
    keys = await keys_of(site.app)
    await gateway.state.guard.key_cache.reread()
    assert await opened(gateway, "") == 401
    assert '"name":"ada"' in await opened(gateway, "", key=keys["ada"])
    assert '"name":"ada"' in await opened(gateway, "", key=keys["ada"], host="fairlead.example")
    for origin, host in (("https://app.example", "localhost"), ("https://fairlead.example", "fairlead.example")):
        assert '"name":"ada"' in await opened(gateway, "", key=keys["ada"], origin=origin, host=host)
    for origin in ("https://evil.example", "null"):
        assert await opened(gateway, "", key=keys["ada"], origin=origin) == 403


async def test_a_server_without_denial_responses_uses_close_codes(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)
    assert await opened(gateway, "", denial=False) == 4401
    assert await opened(gateway, "", denial=False, key=keys["ada"], origin="https://evil.example") == 4403


async def test_revoking_a_key_closes_its_websockets_only(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    await still_site.app.create_key("admin")
    ada, bob = [await still_site.app.create_key("user", user_id=user) for user in ("ada", "bob")]
    async with asking(gateway, "WS", SOCKET, ada.text) as hers, asking(gateway, "WS", SOCKET, bob.text) as his:
        assert hers.status == his.status == 101
        await still_site.app.revoke_key(ada.key.id)
        async with asyncio.timeout(PATIENCE_S):
            await hers.ended.wait()
        closed = {"type": "websocket.close", "code": 4401, "reason": "the key was revoked"}
        assert closed.items() <= hers.messages[-1].items()
        assert not his.ended.is_set()
    assert not gateway.state.guard.key_cache._streams, "the keys are not polled when no stream is open"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_that_waits_for_a_job_ends_when_its_key_is_revoked(method: str, still_site: Site) -> None:
    app = still_site.app
    await app.create_key("admin")
    ada = await app.create_key("user", user_id="ada")
    job = await app.submit("echo", user_id="ada")
    path, body = (f"{JOBS}/{job.id}", None) if method == "GET" else (JOBS, ECHO)
    waiting = asyncio.create_task(ask(still_site.gateway, method, path, ada.text, json=body, prefer="wait=15"))
    async with asyncio.timeout(PATIENCE_S):
        while not app.hub.topics_here():
            await asyncio.sleep(0.01)
    await app.revoke_key(ada.key.id)
    answer = await waiting
    assert (answer.status, answer.code) == (401, "unauthorized")
    assert len((await app.list_jobs(user_id="ada")).data) == (1 if method == "GET" else 2), "the accepted job stays"


async def test_creating_the_first_key_ends_keyless_streams(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    async with asking(gateway, "WS", SOCKET) as exchange:
        assert exchange.status == 101
        await still_site.app.create_key("admin")
        async with asyncio.timeout(PATIENCE_S):
            await exchange.ended.wait()
        assert exchange.messages[-1]["reason"] == "a key is required now"


async def test_a_timeout_of_the_handler_is_not_a_revocation(still_site: Site) -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        raise TimeoutError("its own")

    routes = with_socket(still_site.app).routes
    guard = Guard(slow, fairlead=still_site.app, routes=routes, host="localhost", allowed_origins=[])
    with pytest.raises(TimeoutError, match="its own"):
        await ask(guard, "WS", SOCKET)
