"""Signing in to the dashboard: the cookie, its validity, and what each role sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from fairlead.app import api_keys
from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.gateway import credentials
from fairlead.gateway.app import create_gateway
from fairlead.gateway.dashboard import pages, views
from tests.integration.dashboard_client import Following, following
from tests.integration.gateway_site import Site, client_of, served

MakeSite = Callable[..., Awaitable[Site]]
OWN = {"Origin": "http://localhost"}
FOREIGN = {"Origin": "https://evil.example"}
ENDED = 4401


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "SESSION_KEEP_S", 0.05)
    monkeypatch.setattr(credentials, "SESSION_CHECK_EVERY_S", 0.1)
    for name, kind in views.KINDS.items():
        monkeypatch.setitem(views.KINDS, name, replace(kind, every=0.05))


@pytest.fixture
async def keys(still_site: Site) -> dict[str, str]:
    app = still_site.app
    return {
        "admin": (await app.create_key("admin", name="root")).text,
        "viewer": (await app.create_key("viewer", name="wall")).text,
        "service": (await app.create_key("service")).text,
        "ada": (await app.create_key("user", user_id="ada")).text,
    }


async def sign_in(site: Site, key: str) -> str:
    """Sign in and return the Cookie header."""
    answer = await site.client.post("/session", json={"key": key})
    assert answer.status_code == 200, answer.text
    site.client.cookies.clear()
    return answer.headers["set-cookie"].partition(";")[0]


@asynccontextmanager
async def page_of(site: Site, cookie: str, **headers: str) -> AsyncIterator[Following]:
    async with served(site.gateway) as port:
        given = {"Cookie": cookie, "Origin": f"http://127.0.0.1:{port}", **headers}
        async with following(port, **given) as page:
            yield page


# ---------------------------------------------------------------- the cookie


async def test_a_key_is_exchanged_for_a_cookie_that_scripts_and_other_sites_cannot_use(
    still_site: Site, keys: dict[str, str]
) -> None:
    client = still_site.client
    signed = await client.post("/session", json={"key": keys["viewer"]}, headers=OWN)
    assert signed.json() == {"role": "viewer", "name": "wall", "user_id": None, "may_act": False, "signed_in": True}
    name, *flags = signed.headers["set-cookie"].split("; ")
    assert name.startswith("fairlead_session=")
    assert set(flags) == {"Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"}
    assert keys["viewer"] not in signed.headers["set-cookie"]
    assert (await client.get("/session")).json() == signed.json(), "the client keeps the cookie"
    assert (await client.get("/admin/audit")).status_code == 200
    client.cookies.clear()
    assert (await client.get("/session")).status_code == 401
    by_key = await client.get("/session", headers={"Authorization": f"Bearer {keys['ada']}"})
    assert by_key.json() == {"role": "user", "name": "ada", "user_id": "ada", "may_act": True, "signed_in": False}


async def test_over_https_the_cookie_is_for_https_only(still_site: Site, keys: dict[str, str]) -> None:
    answer = await still_site.client.post("https://localhost/session", json={"key": keys["admin"]})
    assert answer.headers["set-cookie"].endswith("; Secure")


async def test_a_wrong_key_cannot_sign_in(still_site: Site, keys: dict[str, str]) -> None:
    for wrong in ("secret", keys["admin"][:-1], f" {keys['admin']}x", "ключ"):
        answer = await still_site.client.post("/session", json={"key": wrong})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert "set-cookie" not in answer.headers
    assert (await still_site.client.post("/session", json={})).status_code == 422
    assert (await still_site.client.post("/session", json={"key": keys["admin"]}, headers=FOREIGN)).status_code == 403


async def test_an_invalid_cookie_is_refused(still_site: Site, keys: dict[str, str]) -> None:
    for text in ("", "x", "0" * 43, keys["admin"], "ü"):
        answer = await still_site.client.get("/session", headers={"Cookie": f"fairlead_session={text}".encode()})
        assert answer.status_code == 401


async def test_without_keys_no_sign_in_is_needed(still_site: Site) -> None:
    response = await still_site.client.get("/session")
    assert response.json() == {"role": "admin", "name": "keyless", "user_id": None, "may_act": True, "signed_in": False}


# ---------------------------------------------------------------- other sites


async def test_a_change_with_a_cookie_must_come_from_our_own_pages(still_site: Site, keys: dict[str, str]) -> None:
    cookie = {"Cookie": await sign_in(still_site, keys["admin"])}
    client = still_site.client
    for origin in ({}, FOREIGN, {"Origin": "null"}, {"Origin": "http://localhost.evil.example"}):
        refused = await client.post("/admin/services/echo/pause", headers={**cookie, **origin})
        assert (refused.status_code, refused.json()["code"]) == (403, "cross_site")
        assert (await client.delete("/session", headers={**cookie, **origin})).status_code == 403
    assert (await client.get("/admin/audit", headers=cookie)).json()["data"][0]["action"] != "service.pause"
    still_site.gateway.state.guard._origins._allowed = frozenset({"*"})
    assert (await client.post("/admin/services/echo/rebuild", headers={**cookie, **FOREIGN})).status_code == 403
    # A request with a key has no cookie that another page could use.
    key = {"Authorization": f"Bearer {keys['admin']}"}
    assert (await client.post("/api/v1/tickets", headers={**key, **FOREIGN}, json={})).status_code == 201
    job = await client.post("/api/v1/jobs", headers={**cookie, **OWN}, json={"user_id": "a", "feature_name": "echo"})
    assert job.status_code == 202


async def test_a_websocket_with_a_cookie_must_come_from_our_own_pages(still_site: Site, keys: dict[str, str]) -> None:
    cookie = await sign_in(still_site, keys["admin"])
    async with served(still_site.gateway) as port:
        for origin in ({}, FOREIGN):
            with pytest.raises(InvalidStatus) as refused:
                async with following(port, Cookie=cookie, **origin):
                    pass
            assert refused.value.response.status_code == 403
        with pytest.raises(InvalidStatus) as refused:
            async with following(port, Origin=f"http://127.0.0.1:{port}"):
                pass
        assert refused.value.response.status_code == 401


# ---------------------------------------------------------------- the end of a session


async def test_signing_out_ends_the_session_everywhere(still_site: Site, keys: dict[str, str]) -> None:
    cookie = await sign_in(still_site, keys["admin"])
    elsewhere = Fairlead(Settings(Config(), still_site.app.settings.database_url))
    async with elsewhere, client_of(create_gateway(elsewhere)) as other, page_of(still_site, cookie) as page:
        assert (await page.ask(view="audit"))["type"] == "state"
        assert (await other.get("/session", headers={"Cookie": cookie})).json()["name"] == "root"
        answer = await still_site.client.delete("/session", headers={"Cookie": cookie, **OWN})
        assert answer.status_code == 204
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert (await still_site.client.get("/session", headers={"Cookie": cookie})).status_code == 401
        while (await other.get("/session", headers={"Cookie": cookie})).status_code != 401:
            await asyncio.sleep(0.02)
        await page.client.wait_closed()
        assert page.client.close_code == ENDED


async def test_revoking_a_key_ends_its_sessions_and_their_pages(still_site: Site, keys: dict[str, str]) -> None:
    cookie, others = await sign_in(still_site, keys["viewer"]), await sign_in(still_site, keys["admin"])
    async with page_of(still_site, cookie) as page:
        assert (await page.ask(view="audit"))["type"] == "state"
        found = {key.name: key.id for key in await still_site.app.keys()}
        await still_site.client.delete(f"/admin/keys/{found['wall']}", headers={"Cookie": others, **OWN})
        assert (await still_site.client.get("/session", headers={"Cookie": cookie})).status_code == 401
        await page.client.wait_closed()
        assert page.client.close_code == ENDED
    assert (await still_site.client.get("/session", headers={"Cookie": others})).status_code == 200
    assert await still_site.app.session(cookie.partition("=")[2]) is None, "it is deleted from the database"


async def test_a_session_ends_after_twelve_hours(
    still_site: Site, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "SESSION_LIFE_S", 0.3)
    cookie = await sign_in(still_site, keys["admin"])
    while (await still_site.client.get("/session", headers={"Cookie": cookie})).status_code != 401:
        await asyncio.sleep(0.02)


async def test_changing_the_environment_key_ends_its_sessions(make_site: MakeSite) -> None:
    old = "old-" * 8
    site = await make_site(admin_key=old, running=False)
    cookie = {"Cookie": await sign_in(site, old)}
    assert (await site.client.get("/session", headers=cookie)).json()["name"] == "FAIRLEAD_ADMIN_KEY"
    for settings in ({"admin_key": "new-" * 8}, {}):
        after = Fairlead(Settings(Config(), site.app.settings.database_url, **settings))
        async with after, client_of(create_gateway(after)) as client:
            if not settings:
                await after.create_key("admin")
            assert (await client.get("/session", headers=cookie)).status_code == 401


async def test_an_overlong_cookie_is_neither_looked_up_nor_cached() -> None:
    async def find(text: str) -> str | None:
        raise AssertionError("looked up")

    known = credentials.Cookies(find)
    for number in range(100):
        assert await known.key_of(f"{number}" + "x" * 10_000) is None
    assert not known._cached


# ---------------------------------------------------------------- permissions


async def test_a_viewer_sees_everything_and_changes_nothing(still_site: Site, keys: dict[str, str]) -> None:
    cookie = await sign_in(still_site, keys["viewer"])
    job = await still_site.app.submit("echo", user_id="ada")
    async with page_of(still_site, cookie) as page:
        for view in ("overview", "jobs", "users", "batches", "dead", "workers", "audit"):
            assert (await page.ask(view=view))["type"] == "state", view
        assert (await page.ask(view="job", job_id=job.id))["type"] == "state"
    headers = {"Cookie": cookie, **OWN}
    for path in (f"/api/v1/jobs/{job.id}/cancel", "/admin/services/echo/pause", "/admin/queue-dead/purge"):
        refused = await still_site.client.post(path, headers=headers, json={"all": True, "dry_run": True})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await still_site.app.get(job.id)).status == "PENDING"


async def test_a_user_sees_its_own_jobs_only(still_site: Site, keys: dict[str, str]) -> None:
    own = await still_site.app.submit("echo", user_id="ada")
    foreign = await still_site.app.submit("echo", user_id="bob")
    batch = await still_site.app.submit_batch([{"feature_name": "echo"}], user_id="bob")
    async with page_of(still_site, await sign_in(still_site, keys["ada"])) as page:
        assert list((await page.ask(view="jobs"))["state"]["jobs"]) == [own.id]
        assert (await page.ask(view="jobs", user_id="bob"))["code"] == "forbidden"
        assert (await page.ask(view="job", job_id=own.id))["type"] == "state"
        assert (await page.ask(view="job", job_id=foreign.id))["code"] == "not_found"
        assert (await page.ask(view="batches"))["state"]["batches"] == {}
        assert (await page.ask(view="batch", batch_id=batch.id))["code"] == "not_found"
        for view in ("overview", "users", "dead", "workers", "audit"):
            assert (await page.ask(view=view))["code"] == "forbidden", view
    async with page_of(still_site, await sign_in(still_site, keys["service"])) as page:
        assert (await page.ask(view="overview"))["type"] == "state"
        assert (await page.ask(view="audit"))["code"] == "forbidden"


# ---------------------------------------------------------------- pages


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_page_has_a_strict_policy_and_an_etag(still_site: Site, path: str) -> None:
    page = await still_site.client.get(path)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers.get_list("content-security-policy") == [pages.POLICY]
    assert "'unsafe" not in pages.POLICY
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["content-encoding"] == "gzip"
    again = await still_site.client.get(path, headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    plain = await still_site.client.get(path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == page.content


async def test_every_file_is_served_and_nothing_else(still_site: Site) -> None:
    for path, asset in pages.assets().items():
        answer = await still_site.client.get(f"/static/{path}")
        assert (answer.status_code, answer.content) == (200, asset.body)
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    for path in ("nothing.js", "../pages.py", "%2e%2e/pages.py", "/etc/passwd", ""):
        assert (await still_site.client.get(f"/static/{path}")).status_code == 404


async def test_the_page_needs_no_key_but_what_it_shows_does(still_site: Site, keys: dict[str, str]) -> None:
    assert (await still_site.client.get("/")).status_code == 200
    assert (await still_site.client.get("/session")).status_code == 401


def test_a_cookie_is_found_among_others() -> None:
    found: list[Any] = [
        credentials.cookie_in({b"cookie": text})
        for text in (b"a=1; fairlead_session=x; b=2", b"fairlead_session=", b"other_fairlead_session=x", b"")
    ]
    assert found == ["x", "", None, None]
