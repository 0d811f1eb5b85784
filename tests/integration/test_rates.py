"""A provider that counts every sliding window by itself never sees more than the rate, and sees most of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from fairlead import Call, Config, Fairlead, JobStatus, TurnTimeout
from fairlead.domain.fair_share import SECOND
from fairlead.domain.rates import Rate, Window
from fairlead.domain.usage import MOST_IGNORED
from fairlead.domain.views import Reason
from fairlead.engine.roles import Roles
from tests import redis_servers
from tests.chaos.rate_provider import Provider

PER, REQUESTS = 3.0, 30
PATIENCE_S = 60.0


@asynccontextmanager
async def serving(provider: Provider) -> AsyncIterator[str]:
    runner = web.AppRunner(provider.application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/call"
    finally:
        await runner.cleanup()


def config_of(url: str, **service: Any) -> Config:
    rate = {"requests": REQUESTS, "per": PER}
    return Config.model_validate({"services": {"llm": {"limit": 100, "url": url, "rate": rate, **service}}})


def note_sent(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider counts each call within the margin after it was sent, as the rate assumes, however busy the machine
    is."""
    sent, margin = Call.sent, Window(Rate(REQUESTS, None, PER)).numbers.margin / SECOND

    def noted(call: Call) -> None:
        sent(call)
        assert call.sent_at is not None
        provider.latest[call.idempotency_key] = call.sent_at + margin

    monkeypatch.setattr(Call, "sent", noted)


@pytest.mark.slow
async def test_the_provider_sees_the_rate_and_no_more(engines: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Provider(REQUESTS, PER, seconds=0.05)
    note_sent(provider, monkeypatch)
    async with serving(provider) as url:
        app = Fairlead(config_of(url), **engines)
        async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
            handles = [await app.submit("llm", {"n": n}, user_id=f"user-{n % 5}") for n in range(3 * REQUESTS)]
            await asyncio.gather(*(handle.result() for handle in handles))
    assert provider.refused == 0
    assert provider.most() <= REQUESTS
    assert len(provider.arrivals) == 3 * REQUESTS
    assert provider.used() > 0.8, "95 % on a machine that does nothing else: see tests/chaos/rates.py"


@pytest.mark.slow
async def test_calls_that_take_longer_than_the_window_do_not_keep_others_waiting(embedded: dict[str, str]) -> None:
    provider = Provider(5, 1.0, seconds=4.0)
    async with serving(provider) as url:
        app = Fairlead(config_of(url, rate={"requests": 5, "per": 1.0}), **embedded)
        async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
            handles = [await app.submit("llm", {"n": n}, user_id="ada") for n in range(15)]
            await asyncio.gather(*(handle.result() for handle in handles))
    assert provider.refused == 0
    assert provider.arrivals[-1] - provider.arrivals[0] < 4.0, "sent before the first one ended"


async def test_a_lost_redis_does_not_let_more_calls_through(distributed: dict[str, str]) -> None:
    """The rebuild finds the calls of the last window in the database."""
    provider = Provider(REQUESTS, 3600.0)
    async with serving(provider) as url:
        app = Fairlead(config_of(url, rate={"requests": REQUESTS, "per": 3600}), **distributed)
        async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
            for n in range(REQUESTS + 5):
                await app.submit("llm", {"n": n}, user_id="ada")
            while len(provider.arrivals) < REQUESTS:
                await asyncio.sleep(0.05)
            shard = app._runtime.node.shards["main"]  # type: ignore[union-attr]
            rebuild = shard.leader.scopes.rebuild  # type: ignore[union-attr]
            before = rebuild.count
            redis_servers.empty(distributed["redis_url"])
            while rebuild.count == before:
                await asyncio.sleep(0.05)
            (seen,) = await shard.dispatcher.snapshot(["llm"])
            assert (seen.rates[0].requests, seen.waiting[2]) == (REQUESTS, 5)
    assert len(provider.arrivals) == REQUESTS


async def test_a_restart_does_not_let_more_calls_through(embedded: dict[str, str]) -> None:
    provider = Provider(3, 3600.0)
    async with serving(provider) as url:
        for started in range(2):
            app = Fairlead(config_of(url, rate={"requests": 3, "per": 3600}), **embedded)
            async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
                handles = [await app.submit("llm", {}, user_id="ada") for _ in range(2)]
                if not started:
                    await asyncio.gather(*(handle.result() for handle in handles))
                while len(provider.arrivals) < 2 + started:
                    await asyncio.sleep(0.05)
                jobs = await app.list_jobs(status=JobStatus.PENDING)
                assert len(jobs.data) == started, "the fourth call waits"
    assert len(provider.arrivals) == 3


TOKENS = {"tokens": 1000, "per": 3600}
ABSURD: list[Any] = [
    {"tokens_in": -5},
    {"prompt_tokens": 1e30, "completion_tokens": "many"},
    {"tokens_out": 2.5, "units": -1e300},
    ["tokens", 7],
    {"tokens_in": True, "tokens_out": 3},
]


async def test_absurd_and_missing_usage_is_ignored_counted_and_shown_by_the_doctor(engines: dict[str, str]) -> None:
    """Each call is expected to take ten tokens. Only the last of the absurd reports has a credible value, three."""
    provider = Provider(10**6, 3600.0)
    async with serving(provider) as url, asyncio.timeout(PATIENCE_S):
        app = Fairlead(config_of(url, rate={"tokens": 70, "per": 3600}), **engines)
        async with app.running(Roles()):
            for usage in (*ABSURD, None):
                await (await app.submit("llm", {"usage": usage}, user_id="ada", cost=10)).result()
            (seen,) = await app._runtime.node.shards["main"].dispatcher.snapshot(["llm"])  # type: ignore[union-attr]
            assert (seen.rates[0].requests, seen.rates[0].units) == (6, 53.0)
            findings = {finding.code: finding for finding in await app.doctor()}
    assert findings["usage-ignored"].evidence["ignored"] == 1 + 2 + 2 + 1 + 1
    missing = findings["usage-missing"]
    assert (missing.evidence["calls"], missing.evidence["reported"]) == (6, 1)
    assert "rates count what was expected of them" in missing.cause


MEMBERS: dict[str, Any] = {
    "pools": {"gpu": 9},
    "plans": {"free": {}},
    "groups": {"acme": {}},
    "users": {"ada": {"plan": "free", "group": "acme"}},
}
KINDS: list[tuple[str, dict[str, Any], str]] = [
    ("service", {"service": "llm"}, "the rate of llm"),
    ("user", {"service": "llm", "user": True}, "the rate of each user on llm"),
    ("region", {"service": "llm", "region": "eu"}, "the rate of llm in eu"),
    ("pool", {"of": "pool", "name": "gpu"}, "the rate of the pool gpu"),
    ("user", {"of": "plan", "name": "free"}, "the rate of each user of the plan free on llm"),
    ("group", {"of": "group", "name": "acme"}, "the rate of the group acme on llm"),
]


async def test_a_call_that_reports_absurd_usage_without_end_ends(engines: dict[str, str]) -> None:
    app = Fairlead(Config(), **engines)

    @app.service(limit=1)
    async def llm(call: Call) -> str:
        for _ in range(40_000):  # more than a column of 16 bits holds
            call.report_usage(tokens_out=-1)
        return "done"

    async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
        assert await (await app.submit("llm", user_id="ada")).result() == "done"
        report = await app.usage(interval="total")
        assert [(total.calls, total.ignored) for total in report.data] == [(1, MOST_IGNORED)]


async def test_a_rate_of_every_kind_counts_the_calls_before_it_until_it_is_lifted(engines: dict[str, str]) -> None:
    """Each new window reaches back an hour. Its rate allows one call more than there were, so the second waits."""
    provider = Provider(10**6, 3600.0)
    async with serving(provider) as url, asyncio.timeout(PATIENCE_S):
        llm = {"limit": 9, "pool": "gpu", "cost_unit": "tokens", "regions": {"eu": {"url": url, "limit": 9}}}
        app = Fairlead(Config.model_validate({"services": {"llm": llm}, **MEMBERS}), **engines)
        async with app.running(Roles()):
            await (await app.submit("llm", user_id="ada")).result()
            for kind, target, text in KINDS:
                most = len(provider.arrivals) + 1
                await _changed(app, target, requests=most, tokens=1e6, per=3600)
                first, second = [await app.submit("llm", user_id="ada") for _ in range(2)]
                await first.result()
                reason = await _rate_full(app, second.id)
                assert reason.details["of"] == kind
                assert reason.message.startswith(f"{text} ({most} requests and 1000000 tokens per 3600 s) is used up")
                assert len(provider.arrivals) == most
                await _changed(app, target)
                await second.result()
    assert len(provider.arrivals) == 1 + 2 * len(KINDS)


async def _changed(app: Fairlead, target: dict[str, Any], **rate: float) -> None:
    """Set the rate, or lift it."""
    if rate:
        await (app.set_shared_rate if "of" in target else app.set_rate)(**target, **rate)  # type: ignore[operator]
    else:
        lifted = {name: value for name, value in target.items() if name != "user"}
        await (app.lift_shared_rate if "of" in target else app.lift_rate)(**lifted)


async def _rate_full(app: Fairlead, job_id: str) -> Reason:
    while True:
        for reason in (await app.why(job_id)).reasons:
            if reason.code == "rate_full":
                return reason
        await asyncio.sleep(0.01)


async def test_the_usage_that_a_turn_reports_settles_its_rate(engines: dict[str, str]) -> None:
    llm = {"limit": 9, "rate": {"tokens": 1000, "per": 3600}}
    app = Fairlead(Config.model_validate({"services": {"llm": llm}}), **engines)
    async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
        for cost, used in ((900, 100), (1, 400)):
            async with app.turn("llm", user_id="ada", cost=cost) as turn:
                turn.usage = {"tokens_in": 10, "tokens_out": used - 10}
        failed = await app.turns.open("llm", "ada")
        await app.turns.wait(failed.turn_id)
        await app.turns.fail(failed.turn_id, "no good", usage={"tokens_out": 500})
        with pytest.raises(TurnTimeout):
            async with app.turn("llm", user_id="ada", wait_timeout=0.5):
                pass
        assert await _used(app) == 1000


@pytest.mark.parametrize(
    "shared",
    [
        {"pools": {"gpu": {"limit": 9, "rate": TOKENS}}},
        {"plans": {"free": {"rate": TOKENS}}, "users": {"ada": {"plan": "free"}}, "pools": {"gpu": 9}},
        {"groups": {"acme": {"rate": TOKENS}}, "users": {"ada": {"group": "acme"}}, "pools": {"gpu": 9}},
    ],
    ids=["pool", "plan", "group"],
)
async def test_a_rate_in_tokens_that_services_share_counts_their_tokens(
    shared: dict[str, Any], engines: dict[str, str]
) -> None:
    app = Fairlead(Config.model_validate(shared), **engines)

    @app.service(limit=9, pool="gpu")
    async def llm(call: Call) -> None:
        call.report_usage(tokens_out=1000)

    async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
        await (await app.submit("llm", user_id="ada")).result()
        second = await app.submit("llm", user_id="ada")
        assert "(1000 tokens per 3600 s) is used up" in (await _rate_full(app, second.id)).message


@pytest.mark.parametrize(("unit", "used"), [("tokens", 900), ("images", 1)])
async def test_tokens_that_the_upstream_has_left_correct_rates_in_tokens_only(
    unit: str, used: float, embedded: dict[str, str]
) -> None:
    async def handle(_: web.Request) -> web.Response:
        headers = {"x-ratelimit-limit-tokens": "9000", "x-ratelimit-remaining-tokens": "100"}
        return web.json_response({"usage": {}}, headers={**headers, "x-ratelimit-reset-tokens": "1h"})

    provider = Provider(9, PER)
    provider.handle = handle  # type: ignore[method-assign]
    async with serving(provider) as url:
        llm = {"format": "raw", "cost_unit": unit, "rate": {"units": 1000, "per": 3600}}
        app = Fairlead(config_of(url, **llm), **embedded)
        async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
            await (await app.submit("llm", cost=1, user_id="ada")).result()
            assert await _used(app) == used


async def test_units_that_a_handler_reports_as_left_correct_a_rate_in_any_unit(embedded: dict[str, str]) -> None:
    app = Fairlead(Config.model_validate({}), **embedded)

    @app.service("llm", limit=1, cost_unit="images", rate={"units": 1000, "per": 3600})
    async def draw(call: Call) -> None:
        call.rest(3600, units=100, tokens=5)

    async with app.running(Roles()), asyncio.timeout(PATIENCE_S):
        await (await app.submit("llm", cost=1, user_id="ada")).result()
        assert await _used(app) == 900


async def _used(app: Fairlead) -> float:
    """The units that the rate of the service counts."""
    (seen,) = await app._runtime.node.shards["main"].dispatcher.snapshot(["llm"])  # type: ignore[union-attr]
    return seen.rates[0].units
