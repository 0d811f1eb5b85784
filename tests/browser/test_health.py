"""Findings on the overview: readable and short."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from fairlead.observe.doctor.finding import Finding, Severity
from fairlead.observe.snapshot import Observer, QueueSnapshot
from tests.browser.conftest import Open, Raise
from tests.browser.gateway_site import Stage, until
from tests.browser.pages import ask, confirm, settled

MANY = 12


async def drained(stage: Stage) -> None:
    """Drain all workers: an error for services with waiting jobs, a warning for the others."""
    (worker,) = await stage.app.workers()
    await stage.app.drain_worker(worker["name"])

    async def is_draining() -> bool:
        (seen,) = await stage.app.workers()
        return bool(seen["draining"])

    await until(is_draining)
    await stage.submit("gated")


async def width_of(page: Page, selector: str) -> float:
    box = await page.locator(selector).first.bounding_box()
    assert box is not None
    return box["width"]


@pytest.mark.parametrize("width", [1280, 390])
async def test_an_error_is_as_wide_as_the_page(open_window: Open, bare_stage: Stage, width: int) -> None:
    await drained(bare_stage)
    page = await (await open_window(bare_stage, viewport={"width": width, "height": 800})).go()
    await settled(page)
    await expect(page.get_by_test_id("health")).to_contain_text("1 error")
    whole = await width_of(page, ".facts")
    assert await width_of(page, ".health") == whole
    assert await width_of(page, ".findings .error") > 0.8 * whole


async def test_a_finding_of_many_services_names_a_few_and_counts_the_rest(
    open_window: Open, raise_stage: Raise
) -> None:
    more = {f"idle_{n}": {"url": "http://127.0.0.1:9/", "limit": 1} for n in range(MANY)}
    stage = await raise_stage(**more)
    await drained(stage)
    page = await (await open_window(stage)).go()
    await settled(page)
    health = page.get_by_test_id("health")
    await expect(health).to_contain_text("1 error")
    shown = health.get_by_role("heading", name="A service has no worker")
    await expect(shown.first).to_be_visible()
    assert await shown.filter(visible=True).count() < MANY
    await health.get_by_text("more like this").click()
    await expect(health.get_by_text("all workers of idle_11 are draining", exact=False)).to_be_visible()


async def test_slots_are_not_shown_as_free_while_the_dispatcher_does_not_answer(
    open_window: Open, bare_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await (await open_window(bare_stage)).go()
    await settled(page)
    service = page.get_by_test_id("service-gated")
    await expect(service.get_by_text("free", exact=True).first).to_be_visible()

    async def unreachable(observer: Observer, *_: object, **__: object) -> QueueSnapshot:
        return QueueSnapshot(await observer.rules(), unknown="the dispatcher did not answer")

    monkeypatch.setattr(Observer, "queues", unreachable)
    await expect(service).to_contain_text("unknown")
    await expect(service.get_by_text("free", exact=True)).to_have_count(0)
    await expect(page.get_by_test_id("health")).to_contain_text("The dispatcher is unreachable")
    totals = page.get_by_label("Totals")
    await expect(totals).to_contain_text("Slots in use–")
    await expect(totals).to_contain_text("Jobs waiting–")
    monkeypatch.undo()
    await expect(service.get_by_text("free", exact=True).first).to_be_visible()
    await page.goto("about:blank")


async def test_times_in_findings_are_shown_in_local_time(
    open_window: Open, bare_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = Finding(
        "region-rests", Severity.WARNING, "a region rests", "nothing is sent until 2026-06-01T10:20:30.4Z", ""
    )

    async def with_time() -> list[Finding]:
        return [rests]

    monkeypatch.setattr(bare_stage.app.dashboard._findings, "_query", with_time)
    page = await (await open_window(bare_stage, timezone_id="Asia/Kolkata")).go()
    await expect(page.get_by_test_id("health")).to_contain_text("Nothing is sent until 1 Jun, 15:50")


async def test_a_paused_service_is_unpaused_where_the_finding_is(open_window: Open, bare_stage: Stage) -> None:
    await bare_stage.app.pause("echo", who="ops")
    page = await (await open_window(bare_stage)).go()
    health = page.get_by_test_id("health")
    await expect(health).to_contain_text("A service is paused")
    await expect(health).not_to_contain_text("fairlead unpause")
    await ask(page, health.get_by_role("button", name="Unpause"), says="echo")
    await confirm(page)
    assert (await bare_stage.actions())[0] == ("service.resume", "echo")


async def test_pools_are_shown_with_their_slots_in_use(open_window: Open, raise_stage: Raise) -> None:
    config = {"url": "http://127.0.0.1:9/", "limit": 2, "pool": "gpus"}
    stage = await raise_stage(pools={"gpus": 3}, one=config, two=config)
    page = await (await open_window(stage)).go()
    pools = page.get_by_test_id("pools")
    await expect(pools).to_contain_text("0 of 3 slots")
    await expect(pools.get_by_role("link", name="two")).to_be_visible()
