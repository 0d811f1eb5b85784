"""Every route, taken from the router itself, with every kind of caller.

A new route needs a line in `RULES` (gateway/access.py), or the first test fails; with it, all others hold for the route
without a further word here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import pytest
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.websockets import WebSocket

from fairlead.app import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.gateway.access import RULES, Access, all_routes, caller_of, only_looks, rule_of
from fairlead.gateway.app import create_gateway
from tests.integration.asking import ask
from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]
UNKNOWN_JOB = "01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f"


def routes_of(gateway: FastAPI) -> list[tuple[str, str]]:
    return sorted((method, path) for methods, path, _ in all_routes(gateway.routes) for method in methods)


ROUTES = routes_of(create_gateway(Fairlead(Settings(Config()))))
JOB_ROUTES = [(method, path) for method, path in ROUTES if "{job_id}" in path and rule_of(method, path) is Access.ANY]


def each(routes: Iterable[tuple[str, str]]) -> pytest.MarkDecorator:
    routes = list(routes)
    return pytest.mark.parametrize(("method", "path"), routes, ids=[f"{method} {path}" for method, path in routes])


@dataclass
class Door:
    """A gateway with a key for each kind of caller. Jobs and turns are ada's."""

    site: Site
    keys: dict[str, str]

    async def ask(self, method: str, path: str, caller: str) -> int:
        """The status of the answer, each time about a job (and a key) of its own: some routes leave none behind."""
        filled = await self.filled(path)
        answer = await ask(self.site.gateway, method, filled, self.keys.get(caller), json={})
        return answer.status

    async def filled(self, path: str) -> str:
        if "{job_id}" in path:
            job = await self.site.app.submit("echo", user_id="ada")
            path = path.replace("{job_id}", job.id)
        if "{turn_id}" in path:
            turn = await self.site.app.turns.open("slot", "ada")
            path = path.replace("{turn_id}", turn.turn_id)
        if "{key_id}" in path:
            path = path.replace("{key_id}", (await self.site.app.create_key("service")).key.id)
        path = path.replace("{path:path}", "index.html")
        return re.sub(r"\{\w+\}", "echo", path)


@pytest.fixture
async def door(site: Site) -> Door:
    app = site.app
    await app.pause("echo")  # jobs stay where they are
    keys = {
        "admin": (await app.create_key("admin")).text,
        "viewer": (await app.create_key("viewer")).text,
        "service": (await app.create_key("service")).text,
        "ada": (await app.create_key("user", user_id="ada")).text,
        "bob": (await app.create_key("user", user_id="bob")).text,
    }
    return Door(site, keys)


@each(ROUTES)
def test_every_route_has_a_rule(method: str, path: str) -> None:
    assert rule_of(method, path) is not None, f"add ({method!r}, {path!r}) to RULES in gateway/access.py"


@each(RULES)
def test_operators_routes_are_not_for_users(method: str, path: str) -> None:
    if path.startswith("/admin"):
        assert RULES[method, path] is Access.ADMIN
    if path.startswith(("/queue", "/metrics")):
        assert RULES[method, path] is Access.SERVICE


@each(RULES)
def test_what_changes_something_is_not_for_viewers(method: str, path: str) -> None:
    """Beside reading, they may ask for what opens a stream to read, and sign out."""
    harmless = {("POST", "/api/v1/tickets"), ("DELETE", "/session")}
    assert only_looks(method, path) == (method in ("GET", "WS") or (method, path) in harmless)


@each(ROUTES)
async def test_a_route_is_open_to_whom_its_rule_says(door: Door, method: str, path: str) -> None:
    rule = rule_of(method, path)
    assert rule is not None
    said = {caller: await door.ask(method, path, caller) for caller in ("nobody", *door.keys)}
    if rule is Access.OPEN:
        # Whoever signs in is asked for a key by the route itself, and here says none.
        assert set(said.values()) == {422 if method == "POST" else 200}
        return
    assert said.pop("nobody") == 401
    whose = re.search(r"\{(job|turn)_id\}", path)
    if whose and rule is Access.ANY:
        assert said.pop("bob") == 404, f"the {whose[1]} is ada's"
    refused = {caller for caller, status in said.items() if status == 403}
    admitted = {
        Access.ANY: {"ada", "bob", "service", "admin"},
        Access.SERVICE: {"service", "admin"},
        Access.ADMIN: {"admin"},
    }[rule]
    if only_looks(method, path):
        admitted = {"viewer", *admitted}
    assert refused == said.keys() - admitted
    if whose:
        assert [said[caller] for caller in admitted & said.keys() if said[caller] in (401, 403, 404)] == []


async def test_a_wrong_key_is_nobody_s(door: Door) -> None:
    for method, path in ROUTES:
        if rule_of(method, path) is not Access.OPEN:
            for wrong in ("secret", door.keys["admin"][:-1], "FAIRLEAD_ADMIN_KEY", ""):
                answer = await ask(door.site.gateway, method, await door.filled(path), wrong, json={})
                assert answer.status == 401, (method, path)


@each(JOB_ROUTES)
async def test_somebody_else_s_job_looks_like_none(door: Door, method: str, path: str) -> None:
    for written in (str, str.upper, lambda job_id: job_id.replace("-", "")):
        job = await door.site.app.submit("echo", user_id="ada")
        foreign, missing = [
            await ask(door.site.gateway, method, path.replace("{job_id}", written(job_id)), door.keys["bob"], json={})
            for job_id in (job.id, UNKNOWN_JOB)
        ]
        assert (foreign.status, foreign.code) == (missing.status, missing.code) == (404, "not_found")
        assert foreign.json["detail"].replace(job.id, UNKNOWN_JOB) == missing.json["detail"]
        assert (await door.site.app.get(job.id)).status == "PENDING", "and nothing happened to it"


@each(route for route in JOB_ROUTES if route[0] != "WS")
async def test_a_job_id_that_cannot_be_one_is_told_to_a_user_as_to_all_others(
    door: Door, method: str, path: str
) -> None:
    for strange in ("nonsense", "01938f1c-6f5e-7a30-9d2c", "%00", "..", "urn:x"):
        said = [
            await ask(door.site.gateway, method, path.replace("{job_id}", strange), door.keys[caller], json={})
            for caller in ("bob", "service")
        ]
        assert said[0].status == said[1].status == 422


# ---------------------------------------------------------------- what the rest rests on


async def hello(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(caller_of(websocket).name)
    await websocket.receive()


async def anything(request: object) -> PlainTextResponse:
    return PlainTextResponse("anything")


async def test_a_route_without_a_rule_is_refused_to_everybody(door: Door) -> None:
    gateway = create_gateway(door.site.app)
    gateway.add_api_route("/api/v1/forgotten", anything)
    gateway.add_api_route("/api/v1/forgotten/{which}", anything)
    gateway.add_api_websocket_route("/forgotten", hello)
    forgotten = set(routes_of(gateway)) - set(ROUTES)
    assert forgotten == {("GET", "/api/v1/forgotten"), ("GET", "/api/v1/forgotten/{which}"), ("WS", "/forgotten")}
    for method, path in forgotten:
        assert rule_of(method, path) is None
        assert (await ask(gateway, method, path)).status == 401
        for key in door.keys.values():
            assert (await ask(gateway, method, path, key)).status == 403


def test_what_is_mounted_past_the_rules_keeps_the_gateway_from_starting() -> None:
    gateway = create_gateway(Fairlead(Settings(Config())))
    gateway.routes.append(Mount("/elsewhere", app=PlainTextResponse("anything")))
    with pytest.raises(TypeError, match="no rule"):
        gateway.build_middleware_stack()


async def test_a_probe_with_a_wrong_method_hears_of_that_and_not_of_keys(door: Door) -> None:
    assert (await ask(door.site.gateway, "POST", "/livez")).status == 405
    assert (await ask(door.site.gateway, "TRACE", "/readyz")).status == 405


async def test_a_route_that_is_not_there_is_told_to_whoever_has_a_key(door: Door) -> None:
    assert (await ask(door.site.gateway, "GET", "/nowhere")).status == 401
    for key in door.keys.values():
        nowhere = await ask(door.site.gateway, "GET", "/nowhere", key)
        assert (nowhere.status, nowhere.code) == (404, "no_such_route")
        wrong = await ask(door.site.gateway, "PATCH", "/admin/keys", key)
        assert (wrong.status, wrong.headers["allow"]) == (405, "GET, POST")
