"""Keys and tickets: made, used, revoked; and what each role may do with jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from fairlead.app import Fairlead
from fairlead.config import Settings
from fairlead.domain import keytext
from fairlead.domain.config import Config
from fairlead.domain.keys import Role
from fairlead.errors import InvalidInput, Unavailable
from fairlead.gateway.access import ENVIRONMENT, KEYLESS, RULES, Access, Caller, caller_of, user_in_reach
from fairlead.gateway.app import create_gateway
from fairlead.gateway.auth import Guard
from fairlead.gateway.problems import Forbidden
from fairlead.runtime.clock import SystemClock
from tests.integration.asking import ask, asking
from tests.integration.gateway_site import Gate, Site, declare_services

MakeSite = Callable[..., Awaitable[Site]]
JOBS = "/api/v1/jobs"
SOCKET = "/whoami"
ECHO = {"feature_name": "echo"}
PATIENCE_S = 20.0


async def keys_of(app: Fairlead) -> dict[str, str]:
    return {
        "admin": (await app.create_key("admin", name="ops")).text,
        "service": (await app.create_key("service", name="web shop")).text,
        "ada": (await app.create_key("user", user_id="ada")).text,
        "bob": (await app.create_key("user", user_id="bob")).text,
    }


def with_socket(app: Fairlead) -> FastAPI:
    """A gateway with a WebSocket that says who opened it."""
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


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await what():
            await asyncio.sleep(0.02)


# ---------------------------------------------------------------- the first key


async def test_the_first_key_must_be_an_admin_s_and_closes_the_door(still_site: Site) -> None:
    gateway = still_site.gateway
    for wanted in ({"role": "service"}, {"role": "user", "user_id": "ada"}):
        refused = await ask(gateway, "POST", "/admin/keys", json=wanted)
        assert (refused.status, refused.code) == (409, "wrong_state")
    assert (await ask(gateway, "GET", JOBS)).status == 200
    made = await ask(gateway, "POST", "/admin/keys", json={"role": "admin", "name": "ops"})
    assert made.status == 201
    assert (await ask(gateway, "GET", JOBS)).status == 401
    assert (await ask(gateway, "GET", JOBS, made.json["key"])).status == 200
    assert (await ask(gateway, "POST", "/admin/keys", made.json["key"], json={"role": "service"})).status == 201


async def test_beside_the_environment_s_key_the_first_one_may_be_anybody_s(make_site: MakeSite) -> None:
    site = await make_site(running=False, admin_key="secret")
    made = await ask(site.gateway, "POST", "/admin/keys", "secret", json={"role": "user", "user_id": "ada"})
    assert made.status == 201
    assert (await ask(site.gateway, "GET", JOBS, made.json["key"])).status == 200
    assert (await ask(site.gateway, "GET", "/admin/keys", "secret")).status == 200


async def test_without_keys_one_of_ours_is_not_taken_for_none(still_site: Site) -> None:
    unknown = keytext.key_text("0" * 12, bytes(32))
    assert (await ask(still_site.gateway, "GET", JOBS, unknown)).status == 401
    assert (await ask(still_site.gateway, "GET", JOBS, "of-another-server")).status == 200


async def test_revoking_the_last_key_does_not_open_the_door_again(still_site: Site) -> None:
    new = await still_site.app.create_key("admin")
    assert (await ask(still_site.gateway, "DELETE", f"/admin/keys/{new.key.id}", new.text)).status == 204
    assert (await ask(still_site.gateway, "GET", JOBS)).status == 401
    assert (await ask(still_site.gateway, "GET", JOBS, new.text)).status == 401


async def test_without_keys_only_connections_to_loopback_are_served(still_site: Site) -> None:
    """Whatever Host they claim: the server may have been bound to more while there was a key."""
    for address, status in (
        ("192.0.2.7", 401),
        ("127.0.0.1", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("::ffff:192.0.2.7", 401),
    ):
        assert (await ask(still_site.gateway, "GET", JOBS, server=address)).status == status


# ---------------------------------------------------------------- making, listing, revoking


async def test_a_key_is_shown_once_and_stored_as_its_hash_only(still_site: Site, tmp_path: Path) -> None:
    admin = (await still_site.app.create_key("admin")).text
    made = await ask(
        still_site.gateway, "POST", "/admin/keys", admin, json={"role": "user", "user_id": "ada", "name": "laptop"}
    )
    shown = made.json
    secret = shown.pop("key").split("_")[2]
    listed = await ask(still_site.gateway, "GET", "/admin/keys", admin)
    assert listed.json["data"][-1] == shown
    assert {"role": "user", "user_id": "ada", "name": "laptop", "revoked_at": None}.items() <= shown.items()
    assert len(bytes.fromhex(secret)) == 32
    assert secret not in listed.body.decode()
    assert "hash" not in listed.body.decode()
    assert not [file for file in tmp_path.iterdir() if secret.encode() in file.read_bytes()]  # noqa: ASYNC240


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({}, "/role"),
        ({"role": "root"}, "/role"),
        ({"role": "user"}, "/user_id"),
        ({"role": "user", "user_id": ""}, "/user_id"),
        ({"role": "user", "user_id": "a\u202eb"}, "/user_id"),
        ({"role": "service", "user_id": "ada"}, "/user_id"),
        ({"role": "admin", "name": ""}, "/name"),
        ({"role": "admin", "name": "x" * 101}, "/name"),
        ({"role": "admin", "name": "a\nb"}, "/name"),
        ({"role": "admin", "key": "mine"}, "/key"),
    ],
)
async def test_a_key_that_cannot_be_is_refused_by_field(still_site: Site, wanted: Any, pointer: str) -> None:
    refused = await ask(still_site.gateway, "POST", "/admin/keys", json=wanted)
    assert (refused.status, refused.json["pointer"]) == (422, pointer)
    assert await still_site.app.keys() == []


async def test_every_change_of_keys_leaves_an_audit_row_with_who(still_site: Site) -> None:
    app, gateway = still_site.app, still_site.gateway
    first = await app.create_key("admin", name="ops", who="cli")
    made = (await ask(gateway, "POST", "/admin/keys", first.text, json={"role": "user", "user_id": "ada"})).json
    assert (await ask(gateway, "DELETE", f"/admin/keys/{made['id']}", first.text)).status == 204
    assert app._store is not None
    rows = await app._store.audit(limit=10)
    assert [(row.who, row.action, row.target) for row in rows] == [
        (f"ops ({first.key.id})", "key.revoke", made["id"]),
        (f"ops ({first.key.id})", "key.create", made["id"]),
        ("cli", "key.create", first.key.id),
    ]
    assert rows[1].details == {"role": "user", "user_id": "ada", "name": "ada"}
    assert made["key"] not in repr(rows)
    for refused, status in (("nonsense", 404), (made["id"], 409)):
        assert (await ask(gateway, "DELETE", f"/admin/keys/{refused}", first.text)).status == status
    assert len(await app._store.audit(limit=10)) == 3


async def test_the_audit_tells_keys_of_one_name_apart(still_site: Site) -> None:
    app, gateway = still_site.app, still_site.gateway
    twins = [await app.create_key("admin", name="ops") for _ in range(2)]
    for twin in twins:
        made = await ask(gateway, "POST", "/admin/keys", twin.text, json={"role": "user", "user_id": "ada"})
        assert made.status == 201
        row = (await ask(gateway, "GET", "/admin/audit", twin.text)).json["data"][0]
        assert row["who"] == f"ops ({twin.key.id})"
    assert KEYLESS.who == "keyless"
    assert ENVIRONMENT.who == "FAIRLEAD_ADMIN_KEY"


@pytest.mark.parametrize("name", ["cli", "keyless", "python", "FAIRLEAD_ADMIN_KEY"])
async def test_no_key_is_called_what_the_audit_calls_others(name: str, still_site: Site) -> None:
    with pytest.raises(InvalidInput, match=name):
        await still_site.app.create_key("admin", name=name)


async def test_no_key_and_no_ticket_is_ever_logged(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    site = await make_site(running=False, admin_key="s3cret-admin")
    key = (await ask(site.gateway, "POST", "/admin/keys", "s3cret-admin", json={"role": "service"})).json["key"]
    job_id = (await site.app.submit("echo", user_id="ada")).id
    ticket = (await ask(site.gateway, "POST", "/api/v1/tickets", key)).json["ticket"]
    for query in (f"ticket={ticket}", f"ticket={ticket}", f"key={key}"):
        await ask(site.gateway, "GET", f"{JOBS}/{job_id}/events", query=query)

    async def explode(*_: object, **__: object) -> None:
        raise RuntimeError("no reason")

    monkeypatch.setattr(site.app, "list_jobs", explode)
    assert (await ask(site.gateway, "GET", JOBS, key)).status == 500
    assert "/api/v1/tickets 201" in caplog.text
    for secret in (key, key.split("_")[2], ticket, "s3cret-admin"):
        assert secret not in caplog.text


# ---------------------------------------------------------------- what a user's key may do


async def test_a_user_s_key_submits_its_own_jobs_only(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    for body in (ECHO, {**ECHO, "user_id": "ada"}):
        made = await ask(still_site.gateway, "POST", JOBS, keys["ada"], json=body)
        assert made.status == 202
        assert (await still_site.app.get(made.json["job_id"])).user_id == "ada"
    refused = await ask(still_site.gateway, "POST", JOBS, keys["ada"], json={**ECHO, "user_id": "bob"})
    assert (refused.status, refused.code, refused.json["pointer"]) == (403, "forbidden", "/user_id")
    assert (await ask(still_site.gateway, "POST", JOBS, keys["ada"], json={**ECHO, "user_id": None})).status == 422
    assert (await ask(still_site.gateway, "POST", JOBS, keys["service"], json=ECHO)).status == 422
    made = await ask(still_site.gateway, "POST", JOBS, keys["service"], json={**ECHO, "user_id": "carol"})
    assert (await still_site.app.get(made.json["job_id"])).user_id == "carol"


async def test_the_same_of_a_bulk_all_or_none(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    bulk = f"{JOBS}/bulk"
    made = await ask(still_site.gateway, "POST", bulk, keys["ada"], json={"jobs": [ECHO, {**ECHO, "user_id": "ada"}]})
    assert [(await still_site.app.get(job["job_id"])).user_id for job in made.json["jobs"]] == ["ada", "ada"]
    refused = await ask(
        still_site.gateway, "POST", bulk, keys["ada"], json={"jobs": [ECHO, {**ECHO, "user_id": "bob"}]}
    )
    assert (refused.status, refused.json["pointer"]) == (403, "/jobs/1/user_id")
    assert len((await still_site.app.list_jobs()).data) == 2
    for strange in ([], {"jobs": 7}, {"jobs": [7]}):
        assert (await ask(still_site.gateway, "POST", bulk, keys["ada"], json=strange)).status == 422


@pytest.mark.parametrize(
    ("caller", "asked", "given"),
    [
        ("ada", None, "medium"),
        ("ada", "high", "medium"),
        ("ada", "medium", "medium"),
        ("ada", "low", "low"),
        ("service", "high", "high"),
        ("admin", "high", "high"),
    ],
)
async def test_a_user_s_key_may_lower_its_priority_and_not_raise_it(
    still_site: Site, caller: str, asked: str | None, given: str
) -> None:
    keys = await keys_of(still_site.app)
    job = {**ECHO, "user_id": "ada", "priority": asked}
    one = await ask(still_site.gateway, "POST", JOBS, keys[caller], json=job)
    many = await ask(still_site.gateway, "POST", f"{JOBS}/bulk", keys[caller], json={"jobs": [job]})
    assert [one.json["priority"], many.json["jobs"][0]["priority"]] == [given, given]


async def test_lists_are_narrowed_to_the_user_s_own_jobs(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    jobs = {user: (await still_site.app.submit("echo", user_id=user)).id for user in ("ada", "bob")}

    async def listed(caller: str, query: str = "") -> set[str]:
        answer = await ask(still_site.gateway, "GET", JOBS, keys[caller], query=query)
        assert answer.status == 200
        return {job["job_id"] for job in answer.json["data"]}

    assert await listed("ada") == await listed("ada", "user_id=ada") == {jobs["ada"]}
    assert await listed("bob") == {jobs["bob"]}
    assert await listed("service") == await listed("admin") == set(jobs.values())
    assert await listed("service", "user_id=ada") == {jobs["ada"]}
    foreign = await ask(still_site.gateway, "GET", JOBS, keys["ada"], query="user_id=bob")
    assert (foreign.status, foreign.code) == (403, "forbidden")


async def test_an_idempotency_key_of_somebody_else_is_another_one(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    header = {"idempotency-key": "order-17"}
    first, second, again = [
        (await ask(still_site.gateway, "POST", JOBS, keys[who], json=ECHO, **header)).json["job_id"]
        for who in ("ada", "bob", "ada")
    ]
    assert first == again != second


def test_whose_jobs_are_in_reach() -> None:
    ada = Caller(Role.USER, "ada", "ada", "1")
    assert user_in_reach(ada, None) == user_in_reach(ada, "ada") == "ada"
    with pytest.raises(Forbidden):
        user_in_reach(ada, "bob")
    for other in (KEYLESS, Caller(Role.SERVICE, None, "web", "2")):
        assert user_in_reach(other, None) is None
        assert user_in_reach(other, "bob") == "bob"
    with pytest.raises(ValueError):
        Caller(Role.USER, None, "a user who is nobody would see everybody", "3")


# ---------------------------------------------------------------- several gateways


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("database")


@pytest.fixture
async def two_apps(url: str) -> AsyncIterator[tuple[Fairlead, Fairlead]]:
    """Two processes' worth of app on one database."""
    async with AsyncExitStack() as stack:
        apps = []
        for _ in range(2):
            app = Fairlead(Settings(Config(), url))
            declare_services(app, Gate())
            apps.append(await stack.enter_async_context(app))
        yield apps[0], apps[1]


async def test_a_key_opens_every_gateway_at_once_and_revoked_none_soon_after(
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
        assert stream.messages[-1]["more_body"] is False, "ended in order, not torn off"


async def test_a_ticket_is_good_once_whichever_gateway_it_comes_to(two_apps: tuple[Fairlead, Fairlead]) -> None:
    gateways = [with_socket(app) for app in two_apps]
    keys = await keys_of(two_apps[0])
    ticket = await ask(gateways[0], "POST", "/api/v1/tickets", keys["ada"])
    assert (ticket.status, ticket.json["expires_in"]) == (201, 60)
    query = f"ticket={ticket.json['ticket']}"
    said = await asyncio.gather(*(ask(gateways[n % 2], "WS", SOCKET, query=query) for n in range(20)))
    assert sorted(each.status for each in said) == [101] + [401] * 19


# ---------------------------------------------------------------- tickets


async def opened(gateway: FastAPI, query: str, **options: Any) -> Any:
    """What the socket says of who opened it, or the status it was refused with."""
    async with asking(gateway, "WS", SOCKET, query=query, **options) as exchange:
        if exchange.status != 101:
            return exchange.status
        async with asyncio.timeout(PATIENCE_S):
            while len(exchange.messages) < 2:
                await asyncio.sleep(0.005)
        return exchange.messages[1]["text"]


async def test_a_ticket_stands_for_its_key_or_for_one_user_of_it(still_site: Site) -> None:
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


async def test_a_ticket_of_one_user_shows_no_other_s_job(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    job = await still_site.app.submit("echo", user_id="ada")
    for user, status in (("ada", 200), ("bob", 404)):
        made = await ask(still_site.gateway, "POST", "/api/v1/tickets", keys["service"], json={"user_id": user})
        query = f"ticket={made.json['ticket']}"
        answer = await ask(still_site.gateway, "GET", f"{JOBS}/{job.id}/events", query=query)
        assert answer.status == status


async def test_a_ticket_opens_streams_only(still_site: Site) -> None:
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
async def test_what_is_no_ticket_opens_nothing(still_site: Site, query: str) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)
    made = await ask(gateway, "POST", "/api/v1/tickets", keys["admin"])
    assert await opened(gateway, query.format(made.json["ticket"])) == 401


async def test_a_ticket_is_over_after_a_minute(still_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)
    made = await ask(gateway, "POST", "/api/v1/tickets", keys["ada"])
    later = SystemClock()
    monkeypatch.setattr(later, "now", lambda: SystemClock().now() + 61)
    monkeypatch.setattr(still_site.app._keys, "_clock", later)
    assert await opened(gateway, f"ticket={made.json['ticket']}") == 401


async def test_a_ticket_falls_with_its_key_even_one_for_a_user(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)
    new = await still_site.app.create_key("service")
    tickets = [
        (await ask(gateway, "POST", "/api/v1/tickets", new.text, json=body)).json["ticket"]
        for body in ({}, {"user_id": "ada"})
    ]
    assert (await ask(gateway, "DELETE", f"/admin/keys/{new.key.id}", keys["admin"])).status == 204
    assert [await opened(gateway, f"ticket={ticket}") for ticket in tickets] == [401, 401]


async def test_a_ticket_made_before_there_were_keys_opens_nothing_after(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    before = await ask(gateway, "POST", "/api/v1/tickets")
    assert before.status == 201
    assert '"name":"keyless"' in await opened(gateway, f"ticket={before.json['ticket']}")
    made = await ask(gateway, "POST", "/admin/keys", json={"role": "admin"})
    assert made.status == 201
    assert await opened(gateway, f"ticket={before.json['ticket']}") == 401


@pytest.mark.parametrize("query", ["key={}", "access_token={}", "x=fl%5F{}", "{}"])
async def test_a_key_in_a_url_is_refused_even_beside_a_good_one(still_site: Site, query: str) -> None:
    keys = await keys_of(still_site.app)
    text = query.format(keys["ada"]) if "%5F" not in query else query.format(keys["ada"].removeprefix("fl_"))
    for header in (None, keys["ada"]):
        answer = await ask(still_site.gateway, "GET", JOBS, header, query=text)
        assert (answer.status, answer.code) == (401, "unauthorized")
        assert "revoke" in answer.json["detail"]
    assert await opened(with_socket(still_site.app), text, key=keys["ada"]) == 401


# ---------------------------------------------------------------- WebSockets


async def test_a_websocket_needs_a_key_and_an_origin_that_may(make_site: MakeSite) -> None:
    site = await make_site(running=False, allowed_origins=["https://app.example"])
    gateway = with_socket(site.app)
    assert '"name":"keyless"' in await opened(gateway, "")
    assert await opened(gateway, "", origin="https://evil.example") == 403
    assert await opened(gateway, "", host="evil.example") == 421
    keys = await keys_of(site.app)
    await gateway.state.guard.ring.reread()
    assert await opened(gateway, "") == 401
    assert '"name":"ada"' in await opened(gateway, "", key=keys["ada"])
    assert '"name":"ada"' in await opened(gateway, "", key=keys["ada"], host="fairlead.example")
    for origin, host in (("https://app.example", "localhost"), ("https://fairlead.example", "fairlead.example")):
        assert '"name":"ada"' in await opened(gateway, "", key=keys["ada"], origin=origin, host=host)
    for origin in ("https://evil.example", "null"):
        assert await opened(gateway, "", key=keys["ada"], origin=origin) == 403


async def test_where_a_handshake_cannot_be_answered_the_close_code_says_why(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    keys = await keys_of(still_site.app)
    assert await opened(gateway, "", denial=False) == 4401
    assert await opened(gateway, "", denial=False, key=keys["ada"], origin="https://evil.example") == 4403


async def test_a_websocket_ends_when_its_key_is_revoked_and_others_go_on(still_site: Site) -> None:
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
    assert gateway.state.guard.ring._tending is None, "nobody watches when nothing is open"


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
    assert len((await app.list_jobs(user_id="ada")).data) == (1 if method == "GET" else 2), "what was accepted stays"


async def test_streams_of_the_keyless_end_when_the_first_key_is_made(still_site: Site) -> None:
    gateway = with_socket(still_site.app)
    async with asking(gateway, "WS", SOCKET) as exchange:
        assert exchange.status == 101
        await still_site.app.create_key("admin")
        async with asyncio.timeout(PATIENCE_S):
            await exchange.ended.wait()
        assert exchange.messages[-1]["reason"] == "a key is needed now"


async def test_a_handler_s_own_timeout_is_not_taken_for_a_revoked_key(still_site: Site) -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        raise TimeoutError("its own")

    routes = with_socket(still_site.app).routes
    guard = Guard(slow, fairlead=still_site.app, routes=routes, host="localhost", allowed_origins=[])
    with pytest.raises(TimeoutError, match="its own"):
        await ask(guard, "WS", SOCKET)


# ---------------------------------------------------------------- when the truth is away


async def test_while_the_truth_is_away_known_keys_pass_and_probes_answer(
    still_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await keys_of(still_site.app)
    assert (await ask(still_site.gateway, "GET", JOBS, keys["ada"])).status == 200

    async def away() -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(still_site.app._store, "count_keys", away)
    await still_site.gateway.state.guard.ring.reread()
    assert (await ask(still_site.gateway, "GET", JOBS, keys["ada"])).status == 200
    assert (await ask(still_site.gateway, "GET", JOBS)).status == 401
    fresh = create_gateway(still_site.app)
    for key in (keys["ada"], None):
        unknown = await ask(fresh, "GET", JOBS, key)
        assert (unknown.status, unknown.code) == (503, "unavailable")
    assert (await ask(fresh, "GET", "/livez")).status == 200


# ---------------------------------------------------------------- rate limits


async def test_who_submits_too_fast_is_told_when_to_come_back(make_site: MakeSite) -> None:
    site = await make_site(running=False, submits_per_minute=3)
    keys = await keys_of(site.app)
    first = await ask(site.gateway, "POST", JOBS, keys["ada"], json=ECHO)
    assert first.headers["ratelimit-policy"] == '"user";q=3;w=60'
    assert first.headers["ratelimit"] == '"user";r=2;t=20'
    bulk = await ask(site.gateway, "POST", f"{JOBS}/bulk", keys["ada"], json={"jobs": [ECHO, ECHO]})
    assert bulk.headers["ratelimit"].startswith('"user";r=0;')
    for refused in (
        await ask(site.gateway, "POST", JOBS, keys["ada"], json=ECHO),
        await ask(site.gateway, "POST", JOBS, keys["service"], json={**ECHO, "user_id": "ada"}),
        await ask(site.gateway, "POST", f"{JOBS}/bulk", keys["ada"], json={"jobs": [ECHO]}),
    ):
        assert (refused.status, refused.code, refused.json["retryable"]) == (429, "rate_limited", True)
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert refused.headers["ratelimit-policy"] == '"user";q=3;w=60'
        assert refused.headers["ratelimit"].startswith('"user";r=0;t=')
    assert (await ask(site.gateway, "POST", JOBS, keys["bob"], json=ECHO)).status == 202
    assert len((await site.app.list_jobs()).data) == 4


async def test_a_submit_that_is_sent_again_is_answered_beyond_the_limit_and_counts_for_nothing(
    make_site: MakeSite,
) -> None:
    site = await make_site(running=False, submits_per_minute=4)
    ada = {**ECHO, "user_id": "ada"}
    bulks = [{"jobs": [ada]}, {"jobs": [ada, ada]}]
    requests = [(JOBS, ada, "one"), *((f"{JOBS}/bulk", bulk, f"bulk {n}") for n, bulk in enumerate(bulks))]

    async def send(path: str, body: Any, key: str) -> Any:
        return await ask(site.gateway, "POST", path, json=body, **{"idempotency-key": key})

    first = await send(*requests[0])
    again = await send(*requests[0])
    assert first.headers["ratelimit"].startswith('"user";r=3;')
    assert again.headers["ratelimit"].startswith('"user";r=3;')
    for request in requests[1:]:
        assert (await send(*request)).status == 202
    for path, body, key in requests:
        assert (await send(path, body, "another")).code == "rate_limited"
        again = await send(path, body, key)
        assert (again.status, again.headers["idempotent-replayed"]) == (202, "true")
        assert again.headers["ratelimit"].startswith('"user";r=0;')
        other = {**ada, "feature_name": "shout"}
        refused = await send(path, other if path == JOBS else {"jobs": [other]}, key)
        assert (refused.status, refused.code) == (422, "idempotency_mismatch")
        assert refused.headers["ratelimit"].startswith('"user";r=0;t=')
    assert len((await site.app.list_jobs()).data) == 4
    assert (await ask(site.gateway, "POST", JOBS, json=ada)).code == "rate_limited"


async def test_what_is_refused_for_another_reason_tells_how_the_limit_stands(make_site: MakeSite) -> None:
    site = await make_site(running=False, submits_per_minute=9, max_waiting_per_user=1)
    ada = {**ECHO, "user_id": "ada"}
    assert (await ask(site.gateway, "POST", JOBS, json=ada)).status == 202
    left = 8
    for status, path, body in (
        (429, JOBS, ada),
        (429, f"{JOBS}/bulk", {"jobs": [ada]}),
        (422, JOBS, {**ada, "feature_name": "no_such"}),
        (422, f"{JOBS}/bulk", {"jobs": [{**ada, "priority": "no such"}]}),
    ):
        left -= 1
        refused = await ask(site.gateway, "POST", path, json=body)
        assert refused.status == status
        assert refused.headers["ratelimit-policy"] == '"user";q=9;w=60'
        assert refused.headers["ratelimit"].startswith(f'"user";r={left};t=')


async def test_too_many_waiting_says_when_to_come_back(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_waiting_per_user=1)
    job = {**ECHO, "user_id": "ada"}
    assert (await ask(site.gateway, "POST", JOBS, json=job)).status == 202
    refused = await ask(site.gateway, "POST", JOBS, json=job)
    assert (refused.status, refused.code) == (429, "too_many_waiting")
    assert int(refused.headers["retry-after"]) >= 1


async def test_without_a_limit_no_header_tells_of_one(still_site: Site) -> None:
    made = await ask(still_site.gateway, "POST", JOBS, json={**ECHO, "user_id": "ada"})
    assert not [name for name in made.headers if name.startswith("ratelimit")]


# ---------------------------------------------------------------- in Python


async def test_a_key_made_in_python_is_checked_too(still_site: Site) -> None:
    for role, user_id in (("boss", None), ("user", None), ("user", "\0"), ("admin", "ada")):
        with pytest.raises(InvalidInput):
            await still_site.app.create_key(role, user_id=user_id)
    new = await still_site.app.create_key("admin")
    assert new.text not in repr(new)
