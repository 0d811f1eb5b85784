"""The priority service, called for real: its requests, the result of each response, and that no user id changes the
target of a request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import asyncpg
import pytest
from aiohttp import web

from fairlead import Config, Fairlead
from fairlead.app.priority.service import MAX_ANSWER
from fairlead.domain.submission import Submission
from fairlead.gateway.app import create_gateway
from tests import servers
from tests.integration.gateway_site import client_of

PATIENCE = 30.0
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Service:
    """A real server on a free port. Records its requests."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Answer = self.high
        self.url = ""
        self.closing = asyncio.Event()

    async def high(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"priority": "high", "user_id": "someone", "since": 2021})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.raw_path)
        self.headers.append(dict(request.headers))
        return await self.answer(request)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    served = Service()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", served.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    served.url = f"http://{host}:{port}"
    yield served
    served.closing.set()
    await runner.cleanup()


Make = Callable[..., Fairlead]


@pytest.fixture
def make_app(tmp_path: Path, service: Service) -> Make:
    def make(priority: dict[str, Any] | None = None, database_url: str | None = None, **sections: Any) -> Fairlead:
        config = Config.model_validate(
            {
                "services": {"gpu": {"url": "http://127.0.0.1:9/never", "limit": 1}},
                "priority": {"url": service.url, "timeout": PATIENCE, **(priority or {})},
                **sections,
            }
        )
        return Fairlead(config, database_url=database_url or f"sqlite:///{tmp_path}/fairlead.db")

    return make


async def decided(app: Fairlead, user_id: str = "ada", **options: Any) -> tuple[str, str | None]:
    job = await (await app.submit("gpu", user_id=user_id, **options)).get()
    assert job.original_priority is job.priority
    return job.priority.value, job.priority_source


# ---------------------------------------------------------------- requests


async def test_the_service_gets_the_expected_request_and_the_job_records_its_source(
    make_app: Make, service: Service
) -> None:
    async with make_app() as app:
        assert await decided(app) == ("high", "service")
        assert await decided(app) == ("high", "service")
        assert await decided(app, priority="low") == ("low", "given")
    assert service.paths == ["/users/ada/priority"]
    assert "Cookie" not in service.headers[0]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("{}/", "/users/ada/priority"),
        ("{}/api/v2/", "/api/v2/users/ada/priority"),
        ("{}/tiers/{{user_id}}", "/tiers/ada"),
        ("{}/tier?of={{user_id}}&for=fairlead", "/tier?of=ada&for=fairlead"),
        ("{}/{{user_id}}?again={{user_id}}", "/ada?again=ada"),
    ],
)
async def test_the_url_can_be_a_base_or_a_template(make_app: Make, service: Service, url: str, path: str) -> None:
    async with make_app({"url": url.format(service.url)}) as app:
        assert await decided(app) == ("high", "service")
    assert service.paths == [path]


async def test_a_credential_is_sent(make_app: Make, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIORITY_TOKEN", "Bearer s3cret")
    async with make_app({"headers": {"Authorization": "env:PRIORITY_TOKEN"}}) as app:
        await decided(app)
    assert service.headers[0]["Authorization"] == "Bearer s3cret"


ASTRAY = [
    "../admin", "..", ".", "../../etc/passwd", "..%2f..%2fadmin", "%2e%2e", "%2E%2E/x", "a/b", "/", "//evil.example",
    "\\\\evil.example", "..\\..\\x", "@evil.example", "user@evil.example:80", ":80", "http://evil.example/",
    "?admin=1", "#", "a?b#c", "a&priority=high", ";x=1", "a;b", "%", "%%", "%zz", "%00", "%0d%0aHost: evil.example",
    "+", "a b", " ada", "*", "{user_id}", "{}", "ada\u00a0", "ünïcødé", "用户", "🚢", "a" * 255, "ß" * 255, "a,b",
    "'\"<>", "~user", "$(id)", "`id`", "a|b", "a=b", "[::1]", "...", "....", ". .", "．．／", "\ufffd",
]  # fmt: skip


@pytest.mark.parametrize("template", ["{}", "{}/x/{{user_id}}/y", "{}/x?user={{user_id}}"])
async def test_no_user_id_changes_the_target_of_the_request(make_app: Make, service: Service, template: str) -> None:
    asked: dict[str, str] = {}
    async with make_app({"url": template.format(service.url)}) as app:
        for user_id in ASTRAY:
            before = len(service.paths)
            await decided(app, user_id)
            asked |= dict.fromkeys([user_id], *service.paths[before:]) if len(service.paths) > before else {}
    assert asked.keys() == {*ASTRAY} - {".", ".."}, (
        "a dot segment of a path is not sent as a user, however it is encoded"
    )
    before, after = {
        "{}": ("/users/", "/priority"),
        "{}/x/{{user_id}}/y": ("/x/", "/y"),
        "{}/x?user={{user_id}}": ("/x?user=", ""),
    }[template]
    for user_id, path in asked.items():
        assert path.startswith(before)
        assert path.endswith(after)
        sent = path[len(before) : len(path) - len(after)]
        assert unquote(sent) == user_id
        assert not set(sent) & set("/?#&=;@:\\ +"), path
        assert sent not in (".", "..")


async def test_a_user_named_like_a_dot_segment_is_not_looked_up(make_app: Make, service: Service) -> None:
    async with make_app({"breaker_after": 1}) as app:
        assert await decided(app, "..") == ("medium", "fallback")
        assert await decided(app, "ada") == ("high", "service")
    assert service.paths == ["/users/ada/priority"]


async def test_proxies_of_the_environment_are_not_used(
    make_app: Make, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with make_app() as app:
        assert await decided(app) == ("high", "service")


# ---------------------------------------------------------------- responses


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"priority": "low"}, ("low", 1.0, "service")),
        ("low", ("low", 1.0, "service")),
        ({"priority": "medium"}, ("medium", 1.0, "service")),
        ({"plan": "enterprise"}, ("high", 4.0, "service")),
        ({"plan": "enterprise", "weight": 8}, ("high", 8.0, "service")),
        ({"weight": 3}, ("medium", 3.0, "default")),
    ],
)
async def test_a_response_can_have_a_weight_or_a_plan(
    make_app: Make, service: Service, body: Any, expected: tuple[Any, ...]
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body)

    service.answer = answer
    async with make_app(plans={"enterprise": {"priority": "high", "weight": 4}}) as app:
        handle = await app.submit("gpu", user_id="ada")
        record = await app._runtime.store.get(handle.id)
        assert record is not None
        assert (record.job.priority, record.job.weight, record.job.priority_source) == expected


def answering(*, status: int = 200, body: bytes = b"", **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return answer


async def endless(request: web.Request) -> web.StreamResponse:
    """Stops only when the client disconnects."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"priority": "high", "more": "')
    while True:
        await response.write(b"x" * MAX_ANSWER)


BAD_ANSWERS = {
    "500": answering(status=500, body=b'{"priority": "high"}'),
    "503": answering(status=503),
    "404": answering(status=404, body=b'{"priority": "high"}'),
    "401": answering(status=401),
    "204": answering(status=204),
    "not JSON": answering(body=b"<html>high</html>"),
    "nothing": answering(),
    "not UTF-8": answering(body=b'{"priority": "\xff"}'),
    "a list": answering(body=b'["high"]'),
    "another text": answering(body=b'"urgent"'),
    "another value": answering(body=b'{"priority": "urgent"}'),
    "another type": answering(body=b'{"priority": 1}'),
    "no priority": answering(body=b'{"tier": "high"}'),
    "null": answering(body=b'{"priority": null}'),
    "a plan that is not there": answering(body=b'{"plan": "gold"}'),
    "a weight out of range": answering(body=b'{"priority": "high", "weight": 1e9}'),
    "too large": answering(body=b'{"priority": "high", "more": "' + b"x" * MAX_ANSWER + b'"}'),
    "endless": endless,
    "declared as compressed": answering(body=b'\x1f\x8b{"priority": "high"}', **{"Content-Encoding": "gzip"}),
    "a redirect to itself": answering(status=302, Location="/users/bob/priority"),
    "a redirect elsewhere": answering(status=307, Location="http://127.0.0.1:9/"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_after_a_bad_response_the_job_gets_medium_and_records_that(
    make_app: Make, service: Service, name: str
) -> None:
    service.answer = BAD_ANSWERS[name]
    async with make_app() as app:
        assert await decided(app) == ("medium", "fallback")
    assert service.paths == ["/users/ada/priority"]


async def test_an_unreachable_service_means_medium(make_app: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with make_app({"url": f"http://127.0.0.1:{port}"}) as app:
        assert await decided(app) == ("medium", "fallback")


async def test_a_slow_service_means_medium_and_then_rests(make_app: Make, service: Service) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await service.closing.wait()
        return await service.high(request)

    service.answer = slow
    async with make_app({"timeout": 0.05, "breaker_after": 2, "breaker_rest": 3600}) as app:
        for user_id in ("a", "b", "c", "d"):
            assert await decided(app, user_id) == ("medium", "fallback")
    assert len(service.paths) <= 2


@pytest.mark.parametrize(("name", "rests"), [("500", True), ("401", True), ("404", False), ("another value", False)])
async def test_an_error_for_one_user_affects_no_other(make_app: Make, service: Service, name: str, rests: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (service.high(request) if request.path == "/users/ada/priority" else BAD_ANSWERS[name](request))

    service.answer = answer
    async with make_app({"breaker_after": 3, "breaker_rest": 3600}) as app:
        for n in range(5):
            assert await decided(app, f"invented{n}") == ("medium", "fallback")
        assert await decided(app, "ada") == (("medium", "fallback") if rests else ("high", "service"))


async def test_many_jobs_of_one_user_share_one_request(make_app: Make, service: Service) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        asked.set()
        await go_on.wait()
        return await service.high(request)

    service.answer = slow
    async with make_app({"cache": 0}) as app:
        waiting = [asyncio.create_task(decided(app)) for _ in range(20)]
        await asked.wait()
        go_on.set()
        assert set(await asyncio.gather(*waiting)) == {("high", "service")}
    assert service.paths == ["/users/ada/priority"]


async def test_a_bulk_asks_once_per_user(make_app: Make, service: Service) -> None:
    async with make_app() as app:
        await app.submit_many([Submission("gpu", user_id=f"u{n % 10}") for n in range(40)])
        page = await app.list_jobs(limit=100)
        assert {job.priority_source for job in page.data} == {"service"}
        assert len(page.data) == 40
    assert sorted(service.paths) == sorted(f"/users/u{n}/priority" for n in range(10))


async def test_bad_input_is_refused_before_the_service_is_called(make_app: Make, service: Service) -> None:
    async with make_app() as app:
        for user_id in ("", "a\nb", "\0", "x" * 256):
            with pytest.raises(Exception, match="user_id"):
                await app.submit("gpu", user_id=user_id)
    assert service.paths == []


# ---------------------------------------------------------------- other parts that use the priority


async def test_the_gateway_shows_the_source_of_the_priority(make_app: Make, service: Service) -> None:
    async with make_app() as app, client_of(create_gateway(app)) as client:
        accepted = await client.post("/api/v1/jobs", json={"user_id": "ada", "feature_name": "gpu"})
        assert accepted.json()["priority"] == "high"
        job = (await client.get(f"/api/v1/jobs/{accepted.json()['job_id']}")).json()
        assert (job["priority"], job["priority_source"]) == ("high", "service")


async def test_a_job_in_the_callers_transaction_gets_its_priority_too(
    make_app: Make, service: Service, emptied_database: str
) -> None:
    async with make_app(database_url=emptied_database) as app:
        connection = await asyncpg.connect(servers.direct(emptied_database))
        try:
            async with connection.transaction():
                handle = await app.submit("gpu", user_id="ada", connection=connection)
        finally:
            await connection.close()
        job = await handle.get()
        assert (job.priority, job.priority_source) == ("high", "service")


async def test_the_weight_reaches_the_dispatcher(tmp_path: Path) -> None:
    config = Config.model_validate(
        {"services": {"gpu": {"url": "http://127.0.0.1:9/never", "limit": 1}}, "users": {"ada": {"weight": 5}}}
    )
    async with Fairlead(config, database_url=f"sqlite:///{tmp_path}/fairlead.db").running() as app:
        await app.pause("gpu")
        handle = await app.submit("gpu", user_id="ada")
        [jobs] = [jobs async for jobs in app._runtime.store.waiting(10)]
        assert [(job.id, job.weight) for job in jobs] == [(handle.id, 5.0)]


async def test_the_apps_hook_precedes_the_service(make_app: Make, service: Service) -> None:
    app = make_app()

    @app.priority
    def priority_of(user_id: str) -> str | None:
        return "low" if user_id == "ada" else None

    async with app:
        assert await decided(app, "ada") == ("low", "hook")
        assert await decided(app, "bob") == ("high", "service")
    assert service.paths == ["/users/bob/priority"]
    async with app:  # reopened, it starts with empty caches
        assert await decided(app, "bob") == ("high", "service")
