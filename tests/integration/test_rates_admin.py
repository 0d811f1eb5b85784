"""Operators change rates at run time."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.domain.rates import Rate
from fairlead.errors import InvalidInput, NotFound
from tests.integration.gateway_site import Site

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
    assert "1 requests per 3600 s" in why["message"]
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
