"""Access of every kind of caller to every route of the router."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import product

import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.websockets import WebSocket

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.gateway.app import create_gateway
from fairlead.gateway.permissions import RULES, Access, all_routes, caller_of, is_read_only, rule_of
from tests.integration.gateway_site import Site
from tests.integration.http_client import ask, asking

MakeSite = Callable[..., Awaitable[Site]]
UNKNOWN_JOB = "01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f"


def routes_of(gateway: FastAPI) -> list[tuple[str, str]]:
    return sorted((method, path) for methods, path, _ in all_routes(gateway.routes) for method in methods)


ROUTES = routes_of(create_gateway(Fairlead(Settings(Config()))))
JOB_ROUTES = [(method, path) for method, path in ROUTES if "{job_id}" in path and rule_of(method, path) is Access.ANY]


def area_of(path: str) -> str:
    return path.split("/")[1]


@dataclass
class AccessSite:
    """A gateway with a key for each kind of caller. Jobs and turns belong to ada."""

    site: Site
    keys: dict[str, str]

    async def ask(self, method: str, path: str, caller: str) -> int:
        """Return the status of a request. Each uses a new job (and key), since some routes delete them."""
        filled = await self.filled(path)
        answer = await ask(self.site.gateway, method, filled, self.keys.get(caller), json={})
        return answer.status

    async def filled(self, path: str) -> str:
        if "{job_id}" in path:
            job = await self.site.app.submit("echo", user_id="ada")
            path = path.replace("{job_id}", job.id)
        if "{batch_id}" in path:
            batch = await self.site.app.submit_batch([{"feature_name": "echo"}], user_id="ada")
            path = path.replace("{batch_id}", batch.id).replace("{item}", "0")
        path = path.replace("{index}", "0")
        if "{turn_id}" in path:
            turn = await self.site.app.turns.open("slot", "ada")
            path = path.replace("{turn_id}", turn.turn_id)
        if "{schedule_id}" in path:
            schedule = await self.site.app.schedules.create("echo", every=86400, user_id="ada")
            path = path.replace("{schedule_id}", schedule.id)
        if "{key_id}" in path:
            path = path.replace("{key_id}", (await self.site.app.create_key("service")).key.id)
        path = path.replace("{path:path}", "index.html").replace("{model:path}", "llama")
        return re.sub(r"\{\w+\}", "echo", path)


@pytest.fixture
async def access(site: Site) -> AccessSite:
    app = site.app
    await app.pause("echo")  # jobs stay where they are
    keys = {
        "admin": (await app.create_key("admin")).text,
        "viewer": (await app.create_key("viewer")).text,
        "service": (await app.create_key("service")).text,
        "ada": (await app.create_key("user", user_id="ada")).text,
        "bob": (await app.create_key("user", user_id="bob")).text,
    }
    return AccessSite(site, keys)


def test_every_route_has_a_rule() -> None:
    missing = [route for route in ROUTES if rule_of(*route) is None]
    assert missing == [], "add these to RULES in gateway/permissions.py"


def test_users_may_not_use_operator_routes() -> None:
    rules = {route: rule for route, rule in RULES.items() if route[1].startswith("/admin")}
    assert rules == dict.fromkeys(rules, Access.ADMIN)
    rules = {route: rule for route, rule in RULES.items() if route[1].startswith(("/queue", "/metrics"))}
    assert rules == dict.fromkeys(rules, Access.SERVICE)


def test_viewers_may_not_change_anything() -> None:
    """Viewers may read, request a ticket for a stream, and sign out."""
    harmless = {("POST", "/api/v1/tickets"), ("DELETE", "/session")}
    reading = {(method, path) for method, path in RULES if method in ("GET", "WS")}
    assert {route for route in RULES if is_read_only(*route)} == reading | (harmless & RULES.keys())


@pytest.mark.parametrize("area", sorted({area_of(path) for _, path in ROUTES}))
async def test_routes_admit_the_roles_of_their_rules(access: AccessSite, area: str) -> None:
    """All of an area on one site: each request has its own job or key, and the bodies are empty."""
    for method, path in ROUTES:
        if area_of(path) == area:
            await check_roles(access, method, path)


async def check_roles(access: AccessSite, method: str, path: str) -> None:
    route, rule = f"{method} {path}", rule_of(method, path)
    assert rule is not None, route
    statuses = {caller: await access.ask(method, path, caller) for caller in ("keyless", *access.keys)}
    if rule is Access.OPEN:
        # The route of a sign-in checks the key itself, and this body has none.
        assert set(statuses.values()) == {422 if method == "POST" else 200}, route
        return
    assert statuses.pop("keyless") == 401, route
    whose = re.search(r"\{(job|turn|batch)_id\}", path)
    if whose and rule is Access.ANY:
        assert statuses.pop("bob") == 404, f"{route}: the {whose[1]} is ada's"
    refused = {caller for caller, status in statuses.items() if status == 403}
    admitted = {
        Access.ANY: {"ada", "bob", "service", "admin"},
        Access.SERVICE: {"service", "admin"},
        Access.ADMIN: {"admin"},
    }[rule]
    if is_read_only(method, path):
        admitted = {"viewer", *admitted}
    assert refused == statuses.keys() - admitted, route
    if whose:
        lost = [caller for caller in admitted & statuses.keys() if statuses[caller] in (401, 403, 404)]
        assert lost == [], route


async def test_a_wrong_key_is_refused(access: AccessSite) -> None:
    for method, path in ROUTES:
        if rule_of(method, path) is not Access.OPEN:
            for wrong in ("secret", access.keys["admin"][:-1], "FAIRLEAD_ADMIN_KEY", ""):
                answer = await ask(access.site.gateway, method, await access.filled(path), wrong, json={})
                assert answer.status == 401, (method, path)


@pytest.mark.parametrize("place", ["query", "encoded", "path"])
async def test_a_key_in_a_url_is_refused_on_every_route(make_site: MakeSite, place: str) -> None:
    """Also on open routes, since proxies and browsers store URLs."""
    environment = "the-environment-s-own-key"
    site = await make_site(admin_key=environment)
    access = AccessSite(site, {})
    for method, path in ROUTES:
        for key in ((await site.app.create_key("user", user_id="ada")).text, environment):
            filled, query = await access.filled(path), ""
            if place == "path":
                filled += f"/{key}"
            else:
                query = "key=" + (key if place == "query" else "".join(f"%{ord(each):02x}" for each in key))
            answer = await ask(site.gateway, method, filled, environment, query=query, json={})
            assert (answer.status, answer.code) == (401, "unauthorized"), (method, path)
            assert "URL" in str(answer.json)


async def test_a_job_of_another_user_is_not_found(access: AccessSite) -> None:
    for (method, path), written in product(JOB_ROUTES, (str, str.upper, lambda job_id: job_id.replace("-", ""))):
        job = await access.site.app.submit("echo", user_id="ada")
        foreign, missing = [
            await ask(
                access.site.gateway, method, path.replace("{job_id}", written(job_id)), access.keys["bob"], json={}
            )
            for job_id in (job.id, UNKNOWN_JOB)
        ]
        assert (foreign.status, foreign.code) == (missing.status, missing.code) == (404, "not_found"), (method, path)
        assert foreign.json["detail"].replace(job.id, UNKNOWN_JOB) == missing.json["detail"]
        assert (await access.site.app.get(job.id)).status == "PENDING", f"{method} {path} leaves it unchanged"


async def test_an_invalid_job_id_is_422_for_users_too(access: AccessSite) -> None:
    strange = ("nonsense", "01938f1c-6f5e-7a30-9d2c", "%00", "..", "urn:x")
    for (method, path), job_id in product((route for route in JOB_ROUTES if route[0] != "WS"), strange):
        for caller in ("bob", "service"):
            filled = path.replace("{job_id}", job_id)
            answer = await ask(access.site.gateway, method, filled, access.keys[caller], json={})
            assert answer.status == 422, (method, filled, caller)


# ---------------------------------------------------------------- reads without side effects

KEPT = (
    *("job", "job_input", "job_note", "idempotency", "step_result", "attempt", "hold", "rules", "service_override"),
    *("api_key", "ticket", "audit", "job_batch", "batch_item", "adaptive_limit", "dashboard_session"),
    "rebuild_request",
)
"""Tables of jobs and queues, without those that processes update about themselves."""


def kept(site: Site) -> dict[str, list[tuple[object, ...]]]:
    path = site.app.settings.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        return {table: sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in KEPT}


@pytest.mark.parametrize("area", sorted({area_of(path) for method, path in ROUTES if method in ("GET", "HEAD", "WS")}))
async def test_reading_as_a_viewer_changes_nothing(access: AccessSite, area: str) -> None:
    """Even with `Prefer: wait`: a free slot is for the caller of the turn, not for a viewer."""
    for method, path in ROUTES:
        if method in ("GET", "HEAD", "WS") and area_of(path) == area:
            await check_reading(access, method, path)


async def check_reading(access: AccessSite, method: str, path: str) -> None:
    filled, turns = await access.filled(path), access.site.app.turns
    before = kept(access.site)
    options: dict[str, str] = {} if method == "WS" else {"prefer": "wait=1"}
    async with asking(access.site.gateway, method, filled, access.keys["viewer"], **options) as exchange:
        assert exchange.status in (101, 200, 202, 400, 422, 404), (method, path)
        assert kept(access.site) == before, (method, path)
        if "{turn_id}" in path:
            assert exchange.status == 200
            second = await turns.open("slot", "bob")
            assert (await turns.wait(second.turn_id, 20)).status == "RUNNING"
            assert (await turns.get(filled.split("/")[4])).started_at is None, "it never had the slot"
            await turns.cancel(second.turn_id)


async def test_a_viewer_that_waits_for_a_turn_sees_who_gets_it(access: AccessSite) -> None:
    turn = await access.site.app.turns.open("slot", "ada")
    path = f"/api/v1/turns/{turn.turn_id}"
    async with asking(access.site.gateway, "GET", f"{path}/events", access.keys["viewer"]) as watched:
        looking = asyncio.create_task(ask(access.site.gateway, "GET", path, access.keys["viewer"], prefer="wait=20"))
        taken = await ask(access.site.gateway, "GET", path, access.keys["ada"], prefer="wait=20")
        assert taken.json["status"] == "RUNNING"
        assert (await looking).json["status"] == "RUNNING"
        async with asyncio.timeout(20):
            while b"TURN_GRANTED" not in watched.body:
                await asyncio.sleep(0.01)


# ---------------------------------------------------------------- routes without rules


async def hello(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(caller_of(websocket).name)
    await websocket.receive()


async def anything(request: object) -> PlainTextResponse:
    return PlainTextResponse("anything")


async def test_a_route_without_a_rule_is_always_refused(access: AccessSite) -> None:
    gateway = create_gateway(access.site.app)
    gateway.add_api_route("/api/v1/forgotten", anything)
    gateway.add_api_route("/api/v1/forgotten/{which}", anything)
    gateway.add_api_websocket_route("/forgotten", hello)
    forgotten = set(routes_of(gateway)) - set(ROUTES)
    assert forgotten == {("GET", "/api/v1/forgotten"), ("GET", "/api/v1/forgotten/{which}"), ("WS", "/forgotten")}
    for method, path in forgotten:
        assert rule_of(method, path) is None
        assert (await ask(gateway, method, path)).status == 401
        for key in access.keys.values():
            assert (await ask(gateway, method, path, key)).status == 403


def test_a_mount_without_rules_prevents_the_start() -> None:
    gateway = create_gateway(Fairlead(Settings(Config())))
    gateway.routes.append(Mount("/elsewhere", app=PlainTextResponse("anything")))
    with pytest.raises(TypeError, match="cannot check it"):
        gateway.build_middleware_stack()


async def test_a_probe_with_a_wrong_method_is_405_not_401(access: AccessSite) -> None:
    assert (await ask(access.site.gateway, "POST", "/livez")).status == 405
    assert (await ask(access.site.gateway, "TRACE", "/readyz")).status == 405


async def test_an_unknown_route_is_404_with_a_key_only(access: AccessSite) -> None:
    assert (await ask(access.site.gateway, "GET", "/nowhere")).status == 401
    for key in access.keys.values():
        nowhere = await ask(access.site.gateway, "GET", "/nowhere", key)
        assert (nowhere.status, nowhere.code) == (404, "no_such_route")
        wrong = await ask(access.site.gateway, "PATCH", "/admin/keys", key)
        assert (wrong.status, wrong.headers["allow"]) == (405, "GET, POST")
