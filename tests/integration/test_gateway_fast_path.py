"""Submits bypass FastAPI. Behind a prefix they go through it. Both paths must respond alike."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import date, timedelta
from typing import Any

import httpx2
import orjson
import pytest
from fastapi.routing import APIRoute

from fairlead.domain.access import key_text
from fairlead.gateway.app import FAST_ROUTES, ROUTERS
from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]

PREFIX = "/behind/a/proxy"
ADMIN = "the admin key of the environment"
UNKNOWN = key_text("0" * 12, bytes(32))
ONE, BULK = "/api/v1/jobs", "/api/v1/jobs/bulk"
GOOD = {"user_id": "ada", "feature_name": "echo", "input_data": {"n": 1}}
NOT_IN_LINE = {**GOOD, "scheduled_at": f"{date.today() + timedelta(days=30)}T00:00:00Z"}
"""A receipt without a position, which would differ the second time."""
JSON = {"Content-Type": "application/json"}
COUNTED = ("ratelimit", "retry-after")
"""Headers that depend on the time."""


def sent(path: str, body: Any, **headers: str) -> tuple[str, bytes, dict[str, str]]:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return path, content, {**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}}


CASES = {
    "one": sent(ONE, GOOD),
    "one for later": sent(ONE, {**NOT_IN_LINE, "priority": "high", "metadata": {"a": [1]}}),
    "one with a key": sent(ONE, NOT_IN_LINE, Idempotency_Key="once"),
    "the same key again": sent(ONE, NOT_IN_LINE, Idempotency_Key="once"),
    "the same key for another": sent(ONE, GOOD, Idempotency_Key="once"),
    "one that is waited for": sent(ONE, NOT_IN_LINE, Prefer="wait=1"),
    "another name of JSON": sent(ONE, NOT_IN_LINE, Content_Type="application/ld+json; charset=utf-8"),
    "many": sent(BULK, {"jobs": [NOT_IN_LINE] * 3}),
    "many with a key": sent(BULK, {"jobs": [NOT_IN_LINE] * 2}, Idempotency_Key="many"),
    "the same many again": sent(BULK, {"jobs": [NOT_IN_LINE] * 2}, Idempotency_Key="many"),
    "many with bad ones": sent(BULK, {"jobs": [GOOD, {**GOOD, "priority": 1}, {**GOOD, "feature_name": "none"}]}),
    "none": sent(BULK, {"jobs": []}),
    "a bad key": sent(ONE, GOOD, Idempotency_Key="k" * 256),
    "no JSON": sent(ONE, b"{"),
    "no body": sent(ONE, b""),
    "NaN": sent(ONE, b'{"user_id": "ada", "feature_name": "echo", "input_data": {"n": NaN}}'),
    "an integer beyond 64 bits": sent(ONE, b'{"user_id": "ada", "feature_name": "echo", "cost": 99999999999999999999}'),
    "a list": sent(ONE, [GOOD]),
    "an unknown field": sent(ONE, {**GOOD, "colour": "red"}),
    "a missing field": sent(ONE, {"user_id": "ada"}),
    "an unknown feature": sent(ONE, {**GOOD, "feature_name": "none"}),
    "a bad value": sent(ONE, {**GOOD, "priority": "urgent"}),
    "text": sent(ONE, GOOD, Content_Type="text/plain"),
    "too much": sent(ONE, {**GOOD, "input_data": {"x": "x" * 5000}}),
    "too much in all": sent(BULK, {"jobs": [GOOD] * 100}),
    "a length that is none": sent(ONE, GOOD, Content_Length="-1"),
    "a page of another site": sent(ONE, GOOD, Origin="https://evil.example"),
    "a key in the URL": sent(f"{ONE}?key={UNKNOWN}", GOOD),
}


def client_behind_a_prefix(site: Site) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=site.gateway, raise_app_exceptions=False, root_path=PREFIX)
    return httpx2.AsyncClient(transport=transport, base_url=f"http://localhost{PREFIX}")


class Ways:
    """Sends the same request on both paths, and masks what differs each time."""

    def __init__(self, site: Site, through: httpx2.AsyncClient) -> None:
        self._past, self._through = site.client, through

    async def ask(self, path: str, content: bytes, headers: dict[str, str]) -> tuple[Any, Any]:
        headers = {"X-Request-ID": "a-request", **headers}
        past = await self._past.post(path, content=content.replace(b'"ada"', b'"ann"'), headers=headers)
        through = await self._through.post(path, content=content.replace(b'"ada"', b'"ben"'), headers=headers)
        return _shown(past), _shown(through)


def _shown(response: httpx2.Response) -> tuple[int, list[tuple[str, str]], str]:
    headers = [(name, _masked(value)) for name, value in response.headers.multi_items() if name not in COUNTED]
    return response.status_code, sorted(headers), _masked(response.text)


def _masked(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\bann\b|\bben\b", "~", text)


@pytest.fixture
async def ways(make_site: MakeSite) -> AsyncIterator[Ways]:
    site = await make_site(running=False, max_body=4096, submits_per_minute=50)
    async with client_behind_a_prefix(site) as through:
        yield Ways(site, through)


async def test_both_paths_respond_alike(ways: Ways) -> None:
    statuses = {}
    for name, case in CASES.items():
        past, through = await ways.ask(*case)
        assert past == through, name
        statuses[name] = past[0]
    assert set(statuses.values()) == {202, 400, 401, 403, 413, 415, 422}
    assert [name for name, status in statuses.items() if status == 202] == [
        "one", "one for later", "one with a key", "the same key again", "one that is waited for",
        "another name of JSON", "many", "many with a key", "the same many again",
    ]  # fmt: skip


async def test_both_paths_apply_the_rate_limit(ways: Ways) -> None:
    for _ in range(2):
        past, through = await ways.ask(*sent(BULK, {"jobs": [{**NOT_IN_LINE, "input_data": {}}] * 30}))
        assert past == through
    assert past[0] == 429


async def test_both_paths_require_the_same_keys(make_site: MakeSite) -> None:
    site = await make_site(running=False, admin_key=ADMIN)
    keys = {"admin": ADMIN, "unknown": UNKNOWN}
    for role in ("user", "viewer", "service"):
        made = await site.client.post(
            "/admin/keys",
            json={"name": role, "role": role, **({"user_id": "eve"} if role == "user" else {})},
            headers={"Authorization": f"Bearer {ADMIN}"},
        )
        keys[role] = made.json()["key"]
    answered = {}
    async with client_behind_a_prefix(site) as through:
        ways = Ways(site, through)
        for path, body in ((ONE, NOT_IN_LINE), (BULK, {"jobs": [NOT_IN_LINE]})):
            past, via = await ways.ask(*sent(path, body))
            assert past == via
            assert past[0] == 401
            for name, key in keys.items():
                past, via = await ways.ask(*sent(path, body, Authorization=f"Bearer {key}"))
                assert past == via, name
                answered[name] = past[0]
    assert answered == {"admin": 202, "unknown": 401, "user": 403, "viewer": 403, "service": 202}


def test_the_fast_path_calls_the_functions_of_the_routes() -> None:
    every = [route for router in ROUTERS for route in router.routes]
    routes = [route for route in every if isinstance(route, APIRoute) and "POST" in (route.methods or ())]
    assert {route.path: route.endpoint for route in routes if route.path in FAST_ROUTES} == FAST_ROUTES
