"""Operators change rates at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.failure import Exit
from fairlead.domain.rates import Rate
from fairlead.errors import InvalidInput, NotFound
from tests.integration.cli_process import up
from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]
RATE = "/admin/services/echo/rate"


async def test_a_rate_is_set_shown_and_lifted(site: Site) -> None:
    changed = await site.client.put(RATE, json={"requests": 1, "per": 3600})
    assert changed.status_code == 200, changed.text
    assert changed.json()["rate"] == {"requests": 1, "units": None, "per": 3600.0}
    first, second = [await site.submit() for _ in range(2)]
    await site.app.wait(first, timeout=20)
    why = await _rate_full(site, second)
    assert why["details"]["of"] == "service"
    assert why["details"]["until"] is not None
    assert "1 request per 3600 s" in why["message"]
    status = await site.client.get("/queue/status")
    (echo,) = [each for each in status.json()["services"] if each["service"] == "echo"]
    (use,) = echo["rates"]
    assert (use["requests"], use["full"], echo["rate"]["requests"]) == (1, True, 1)
    position = await site.app.why(second)
    assert position.estimated_wait is not None
    assert position.estimated_wait.low > 3000
    metrics = (await site.client.get("/metrics")).text
    assert 'fairlead_rate_used{name="echo",of="service",service="echo",unit="requests"} 1.0' in metrics
    lifted = await site.client.delete(RATE)
    assert lifted.json()["rate"] is None
    await site.app.wait(second, timeout=20)
    actions = [record.action for record in (await site.app.audit()).data]
    assert actions[:2] == ["service.lift_rate", "service.rate"]


async def _rate_full(site: Site, job_id: str) -> dict[str, object]:
    async with asyncio.timeout(20):
        while True:
            reasons = (await site.client.get(f"/api/v1/jobs/{job_id}/why")).json()["reasons"]
            if found := [reason for reason in reasons if reason["code"] == "rate_full"]:
                return dict(found[0])
            await asyncio.sleep(0.01)


async def test_a_user_at_the_user_rate_sees_that_and_others_go_on(site: Site) -> None:
    await site.app.set_rate("echo", requests=1, per=3600, user=True)
    first, second, other = [await site.submit(user_id=user) for user in ("ada", "ada", "bob")]
    for job_id in (first, other):
        await site.app.wait(job_id, timeout=20)
    assert (await _rate_full(site, second))["details"]["of"] == "user"  # type: ignore[index]


async def test_rates_that_make_no_sense_are_refused(site: Site) -> None:
    for wrong in ({}, {"requests": 0}, {"units": -1}, {"requests": 1, "per": 0.5}, {"tokens": 1, "units": 1}):
        refused = await site.client.put(RATE, json=wrong)
        assert refused.status_code == 422, wrong
    with pytest.raises(InvalidInput, match="less than or equal to 86400"):
        await site.app.set_rate("echo", requests=1, per=1e6)
    with pytest.raises(NotFound):
        await site.app.set_rate("nothing", requests=1)
    state = await site.app.set_rate("echo", tokens=7.5)
    assert state.rate == Rate(None, 7.5)


@pytest.mark.parametrize("of", [{}, {"user": True}])
async def test_tokens_of_a_service_that_counts_in_seconds_are_refused(site: Site, of: dict[str, Any]) -> None:
    refused = await site.client.put("/admin/services/shout/rate", json={"tokens": 7.5, **of})
    assert (refused.status_code, refused.json()["pointer"]) == (422, "/tokens")
    assert refused.json()["detail"] == "shout counts in seconds, not in tokens: set units instead, or requests"
    assert (await site.app.set_rate("shout", units=1, **of)).unit == "seconds"


SECTIONS: dict[str, Any] = {
    "services": {"llm": {"limit": 9, "url": "http://127.0.0.1:9", "cost_unit": "tokens", "pool": "gpu"}},
    "pools": {"gpu": {"limit": 9, "rate": {"tokens": 900, "per": 60}}},
    "plans": {"free": {"rate": {"requests": 5}}, "gold": {}},
    "groups": {"acme": {}, "red": {"parent": "acme"}},
}


async def test_rates_that_services_share_are_set_shown_and_lifted(make_site: MakeSite) -> None:
    site = await make_site(sections=SECTIONS)
    for path, name in (("pool/gpu", "gpu"), ("plan/gold", "gold"), ("group/acme/red", "acme/red")):
        changed = await site.client.put(f"/admin/rates/{path}", json={"requests": 1, "tokens": 7, "per": 30})
        assert changed.status_code == 200, changed.text
        assert changed.json()["rate"] == {"requests": 1, "units": 7.0, "per": 30.0}
        status = (await site.client.get("/queue/status")).json()
        (shown,) = [each for each in status["shared_rates"] if each["name"] == name]
        assert (shown["of"], shown["rate"], shown["overridden"]) == (path.split("/")[0], changed.json()["rate"], True)
        assert shown["unit"] == ("tokens" if name == "gpu" else "units"), "other services count seconds"
    lifted = await site.client.delete("/admin/rates/pool/gpu")
    assert lifted.json()["rate"] == lifted.json()["declared_rate"] == {"requests": None, "units": 900.0, "per": 60.0}
    assert (await site.app.lift_shared_rate("plan", "gold")).rate is None
    (entry, *_) = (await site.app.audit(action="pool.lift_rate")).data
    assert (entry.target, entry.details["was"]) == ("gpu", {"requests": 1, "units": 7.0, "per": 30.0})
    actions = [record.action for record in (await site.app.audit()).data]
    assert actions == ["plan.lift_rate", "pool.lift_rate", "group.rate", "plan.rate", "pool.rate"]


async def test_unknown_names_are_refused_with_those_that_exist(make_site: MakeSite) -> None:
    site = await make_site(sections=SECTIONS)
    for path, known in (
        ("rates/pool/cpu", "known are: gpu"),
        ("rates/plan/silver", "known are: free, gold"),
        ("rates/group/red", "known are: acme, acme/red"),
        ("services/llms/rate", "known are: broken, echo,"),
    ):
        for refused in (
            await site.client.put(f"/admin/{path}", json={"requests": 1}),
            await site.client.delete(f"/admin/{path}"),
        ):
            assert refused.status_code == 404
            assert known in refused.json()["detail"], path
    for body in ({}, {"requests": 0}, {"requests": 10**7}, {"units": -1}, {"requests": 1, "user": True}):
        assert (await site.client.put("/admin/rates/pool/gpu", json=body)).status_code == 422, body
    assert (await site.client.put("/admin/rates/service/llm", json={"requests": 1})).status_code == 422
    with pytest.raises(NotFound, match="llm has no region 'mars'; none is declared"):
        await site.app.set_rate("llm", requests=1, region="mars")
    with pytest.raises(InvalidInput, match="user and region"):
        await site.app.set_rate("llm", requests=1, region="mars", user=True)
    assert (await site.app.audit()).data == []


async def test_a_rate_of_a_plan_needs_services_that_one_redis_counts(make_site: MakeSite) -> None:
    split = {
        "limit": 2,
        "url": "http://127.0.0.1:9",
        "shards": {"main": {"bands": ["high", "medium", "low"], "limit": 2}},
    }
    site = await make_site(sections={**SECTIONS, "services": {"part": split}, "pools": {}, "plans": {"gold": {}}})
    with pytest.raises(InvalidInput, match="part is split over shards, so the plan gold cannot have a rate"):
        await site.app.set_shared_rate("plan", "gold", requests=1)
    with pytest.raises(InvalidInput, match="part is split over shards"):
        await site.app.set_rate("part", requests=1)


TOML = """
[services.slow]
limit = 1

[services.llm]
limit = 9
cost_unit = "tokens"
regions.eu = { url = "http://127.0.0.1:9/", limit = 9, pool = "gpu" }
[pools]
gpu = 9
[plans.free]
rate = { requests = 5 }
[groups.acme]
"""


def test_the_command_shows_changes_and_lifts_rates(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text(TOML, encoding="utf-8")
    with up(tmp_path) as server:

        def printed(*arguments: str) -> str:
            done = server.run("rate", *arguments)
            return done.out.strip() or done.err.strip()

        region, changed = ("llm", "--region", "eu"), ("--requests", "3", "--tokens", "1e6")
        rate = "3 requests and 1000000 tokens per 60 s"
        assert printed(*region, *changed) == f"llm  rate none, for each user none, in eu {rate}"
        assert printed("--pool", "gpu", *changed) == f"pool gpu  rate {rate}"
        assert printed("--pool", "gpu").endswith(f"\n  pool gpu: 0 requests and 0 tokens used of {rate}")
        assert printed("--plan", "free", "--requests", "2") == "plan free  rate of each user 2 requests per 60 s"
        assert printed("--plan", "free", "--lift") == "plan free  rate of each user 5 requests per 60 s"
        assert printed("--group", "acme", "--requests", "7") == "group acme  rate 7 requests per 60 s"
        assert "there is no group 'red'; known are: acme" in printed("--group", "red", "--requests", "7")
        assert "slow counts in seconds, not in tokens" in printed("slow", "--tokens", "5")
        assert printed("slow", "--units", "5") == "slow  rate 5 seconds per 60 s, for each user none"
        for wrong in (
            (),
            ("llm", "--pool", "gpu"),
            ("--plan", "free", "--user", "--requests", "1"),
            ("--pool", "gpu", "--per", "9"),
        ):
            assert server.run("rate", *wrong).code == Exit.USAGE, wrong
        status = server.run("status").out
        for line in (
            f"llm, region eu: 0 requests and 0 tokens used of {rate}",
            f"pool gpu: 0 requests and 0 tokens used of {rate}",
            "plan free: rate of each user 5 requests per 60 s",
            "group acme: rate 7 requests per 60 s, by an operator",
        ):
            assert line in status
        assert printed(*region, "--lift") == "llm  rate none, for each user none"
        assert f"rate={rate}" in server.run("audit", "--action", "pool.rate").out
