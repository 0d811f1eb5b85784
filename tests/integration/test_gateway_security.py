"""Authentication, origins, and what logs and responses reveal."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable

import pytest

from fairlead.errors import Unavailable
from tests.integration.gateway_site import Site, client_of
from tests.integration.http_client import ask

MakeSite = Callable[..., Awaitable[Site]]

BODY = {"user_id": "ada", "feature_name": "echo"}


# ---------------------------------------------------------------- the key


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", "Bearer secre", "Bearer secret2", "Basic secret", "secret"]
)
async def test_with_an_admin_key_every_route_but_the_probes_needs_it(
    make_site: MakeSite, authorization: str | None
) -> None:
    site = await make_site(running=False, admin_key="secret")
    headers = {"Authorization": authorization} if authorization is not None else {}
    for method, path in (
        ("POST", "/api/v1/jobs"),
        ("GET", "/api/v1/jobs"),
        ("POST", "/admin/queue-dead/purge"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
    ):
        response = await site.client.request(method, path, headers=headers)
        assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
        assert response.headers["www-authenticate"].startswith("Bearer")
    assert (await site.client.get("/livez", headers=headers)).status_code == 200
    assert (await site.client.get("/readyz", headers=headers)).status_code == 200


async def test_the_right_key_opens_everything_from_any_host(make_site: MakeSite) -> None:
    site = await make_site(running=False, admin_key="secret")
    async with client_of(site.gateway, "fairlead.example") as client:
        for authorization in ("Bearer secret", "bearer secret"):
            response = await client.post("/api/v1/jobs", json=BODY, headers={"Authorization": authorization})
            assert response.status_code == 202


# ---------------------------------------------------------------- without a key: loopback and no cross-site use


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8123", "[::1]:8000", "LOCALHOST"])
async def test_without_a_key_our_own_host_names_are_served(still_site: Site, host: str) -> None:
    for _ in range(2):
        assert (await still_site.client.get("/api/v1/jobs", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "192.168.0.7",
        "",
        "[::1",
        "evil.example@127.0.0.1",
        "localhost/evil.example",
        "localhost?evil.example",
    ],
)
async def test_without_a_key_a_foreign_host_name_is_refused(still_site: Site, host: str) -> None:
    response = await still_site.client.post("/api/v1/jobs", json=BODY, headers={"Host": host})
    assert (response.status_code, response.json()["code"]) == (421, "wrong_host")
    assert await still_site.job_ids() == []


async def test_the_configured_host_is_served(make_site: MakeSite) -> None:
    site = await make_site(running=False, host="127.0.0.5")
    assert (await site.client.get("/livez", headers={"Host": "127.0.0.5:8000"})).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://localhost.evil"])
async def test_a_page_of_another_origin_cannot_post(still_site: Site, origin: str) -> None:
    job_id = await still_site.submit()
    for path in ("/api/v1/jobs", f"/api/v1/jobs/{job_id}/cancel", "/admin/queue-dead/purge"):
        response = await still_site.client.post(path, headers={"Origin": origin})
        assert (response.status_code, response.json()["code"]) == (403, "cross_site")
    assert (await still_site.app.get(job_id)).status == "PENDING"


async def test_a_page_of_this_server_may_post(still_site: Site) -> None:
    headers = {"Origin": "http://localhost:8000", "Host": "localhost:8000"}
    assert (await still_site.client.post("/api/v1/jobs", json=BODY, headers=headers)).status_code == 202


async def test_without_a_key_a_wildcard_admits_no_page(make_site: MakeSite) -> None:
    """Otherwise any page that the user opens could do everything."""
    site = await make_site(running=False, allowed_origins=["*", "https://app.example"])
    foreign = {"Origin": "https://evil.example"}
    for method, path in (("POST", "/api/v1/jobs"), ("GET", "/api/v1/jobs"), ("POST", "/admin/keys")):
        refused = await site.client.request(method, path, json=BODY, headers=foreign)
        assert (refused.status_code, refused.json()["code"]) == (403, "cross_site")
    assert (await ask(site.gateway, "WS", "/ws", origin="https://evil.example")).status == 403
    allowed = {"Origin": "https://app.example"}
    assert (await site.client.post("/api/v1/jobs", json=BODY, headers=allowed)).status_code == 202
    key = (await site.app.create_key("admin")).text
    await site.gateway.state.guard.key_cache.reread()
    with_key = {**foreign, "Authorization": f"Bearer {key}"}
    assert (await site.client.get("/api/v1/jobs", headers=with_key)).status_code == 200


PROXIED = {
    "Forwarded": "for=192.0.2.7",
    "Via": "1.1 proxy.example",
    "X-Forwarded-For": "192.0.2.7",
    "X-Forwarded-Host": "fairlead.example",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Anything": "",
    "X-Real-IP": "192.0.2.7",
    "CF-Connecting-IP": "192.0.2.7",
}


@pytest.mark.parametrize("header", PROXIED)
async def test_without_a_key_a_request_through_a_proxy_is_refused(still_site: Site, header: str) -> None:
    """Also after a direct request, and if the proxy sends `Host: localhost`."""
    assert (await still_site.client.get("/api/v1/jobs")).status_code == 200
    for method, path in (("POST", "/api/v1/jobs"), ("GET", "/api/v1/jobs"), ("GET", "/"), ("GET", "/livez")):
        response = await still_site.client.request(method, path, json=BODY, headers={header: PROXIED[header]})
        assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
        assert header.lower() in response.json()["detail"]
        assert "fairlead keys create --role admin" in response.json()["detail"]
    assert await still_site.job_ids() == []


async def test_with_a_key_requests_may_come_through_a_proxy(make_site: MakeSite) -> None:
    site = await make_site(running=False, admin_key="secret")
    headers = {"Authorization": "Bearer secret", **PROXIED}
    assert (await site.client.get("/api/v1/jobs", headers=headers)).status_code == 200
    assert (await site.client.get("/", headers=PROXIED)).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_without_a_key_another_origin_cannot_embed_an_address(still_site: Site, site: str) -> None:
    """Images and frames are requested without an Origin; browsers send Sec-Fetch-Site."""
    for mode, dest in (("no-cors", "image"), ("navigate", "iframe")):
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        response = await still_site.client.get("/api/v1/jobs", headers=headers)
        assert (response.status_code, response.json()["code"]) == (403, "cross_site")
    followed = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for headers in (followed, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert (await still_site.client.get("/api/v1/jobs", headers=headers)).status_code == 200


# ---------------------------------------------------------------- CORS


async def test_an_allowed_origin_may_read_responses_and_errors(make_site: MakeSite) -> None:
    site = await make_site(running=False, allowed_origins=["https://app.example"])
    origin = {"Origin": "https://app.example"}
    preflight = await site.client.options(
        "/api/v1/jobs",
        headers={
            **origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type, idempotency-key, prefer, authorization",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    accepted = await site.client.post("/api/v1/jobs", json=BODY, headers=origin)
    assert accepted.status_code == 202
    assert "Location" in accepted.headers["access-control-expose-headers"]
    failed = await site.client.post("/api/v1/jobs", json={}, headers=origin)
    assert failed.status_code == 422
    assert failed.headers["access-control-allow-origin"] == "https://app.example"
    foreign = await site.client.post("/api/v1/jobs", json=BODY, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert "access-control-allow-origin" not in foreign.headers


async def test_a_preflight_needs_no_key_and_the_request_does(make_site: MakeSite) -> None:
    site = await make_site(running=False, admin_key="secret", allowed_origins=["https://app.example"])
    origin = {"Origin": "https://app.example"}
    asked = {**origin, "Access-Control-Request-Method": "POST"}
    assert (await site.client.options("/api/v1/jobs", headers=asked)).status_code == 200
    response = await site.client.post("/api/v1/jobs", json=BODY, headers=origin)
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "https://app.example"


async def test_without_allowed_origins_there_are_no_cors_headers(still_site: Site) -> None:
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    response = await still_site.client.options("/api/v1/jobs", headers=headers)
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control-")]


# ---------------------------------------------------------------- headers and the log


async def test_every_response_has_the_security_headers(still_site: Site) -> None:
    for path in ("/api/v1/jobs", "/livez", "/nowhere", "/openapi.json"):
        response = await still_site.client.get(path)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in response.headers["content-security-policy"]


async def test_a_safe_request_id_is_kept_and_any_other_replaced(still_site: Site) -> None:
    kept = await still_site.client.get("/livez", headers={"X-Request-ID": "abc-123"})
    assert kept.headers["x-request-id"] == "abc-123"
    for strange in ("a b", "x" * 65, "<script>", ""):
        response = await still_site.client.get("/livez", headers={"X-Request-ID": strange})
        assert re.fullmatch(r"[0-9a-f]{32}", response.headers["x-request-id"])


async def test_probes_are_not_logged(
    still_site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise Unavailable("away")

    caplog.set_level(logging.INFO, "fairlead.gateway")
    assert (await still_site.client.get("/livez")).status_code == 200
    assert (await still_site.client.get("/readyz")).status_code == 200
    monkeypatch.setattr(still_site.app._runtime.store, "ping", away)
    assert (await still_site.client.get("/readyz")).status_code == 503
    assert [record for record in caplog.records if record.name == "fairlead.gateway"] == []


async def test_a_request_is_one_log_line_without_user_data(still_site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "fairlead.gateway")
    body = {**BODY, "user_id": "private-name", "input_data": {"prompt": "a secret wish"}}
    response = await still_site.client.post("/api/v1/jobs", json=body)
    await still_site.client.get("/api/v1/jobs?user_id=private-name")
    lines = [record.getMessage() for record in caplog.records if record.name == "fairlead.gateway"]
    assert len(lines) == 2
    assert lines[0].startswith("POST /api/v1/jobs 202 ")
    assert lines[0].endswith(f"request_id={response.headers['x-request-id']}")
    assert "private-name" not in caplog.text
    assert "secret" not in caplog.text


async def test_a_key_in_a_url_is_not_logged(make_site: MakeSite, caplog: pytest.LogCaptureFixture) -> None:
    environment = "the-environment-s-own-key"
    site = await make_site(running=False, admin_key=environment)
    key = (await site.app.create_key("service")).text
    caplog.set_level(logging.DEBUG)
    for secret in (environment, key):
        for method, path, query in (("GET", f"/{secret}", ""), ("GET", "/", f"key={secret}"), ("WS", "/ws", secret)):
            assert (await ask(site.gateway, method, path, query=query)).status == 401
    lines = [record.getMessage() for record in caplog.records if record.name == "fairlead.gateway"]
    assert len(lines) == 6
    assert "GET (a URL with a key) 401" in caplog.text
    assert environment not in caplog.text
    assert key.split("_")[2] not in caplog.text


async def test_control_characters_in_a_path_never_reach_the_log(
    still_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fairlead.gateway")
    await still_site.client.get("/api/v1/jobs/a%0AERROR%20forged%1b[31m%C2%85")
    lines = [record.getMessage() for record in caplog.records if record.name == "fairlead.gateway"]
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert "\\n" in lines[0]


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/v1/jobs"), ("GET", "/api/v1/jobs")])
async def test_an_unexpected_exception_is_a_bare_500_with_details_in_the_log(
    still_site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    async def explode(*_: object, **__: object) -> None:
        raise RuntimeError("password=hunter2 in /somewhere")

    monkeypatch.setattr(still_site.app.jobs, "accept", explode)
    monkeypatch.setattr(still_site.app, "list_jobs", explode)
    response = await still_site.client.request(method, path, json=BODY if method == "POST" else None)
    assert (response.status_code, response.json()["code"]) == (500, "internal_error")
    assert response.headers["content-type"] == "application/problem+json"
    assert "hunter2" not in response.text
    [entry] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert response.headers["x-request-id"] in entry.getMessage()
    assert "hunter2" in str(entry.exc_info)


async def test_the_fast_path_and_fastapi_return_the_same_errors(still_site: Site) -> None:
    hot = (await still_site.client.post("/api/v1/jobs", json=[])).json()
    usual = (await still_site.client.get("/api/v1/jobs?limit=0")).json()
    assert hot.keys() == usual.keys()
