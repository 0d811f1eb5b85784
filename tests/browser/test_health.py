"""What the overview says when something is wrong: readable, and no longer than it has to be."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from fairlead.runtime import status
from fairlead.runtime.doctor.finding import Finding, Severity
from fairlead.runtime.process import Process
from fairlead.runtime.status import Sight
from fairlead.store.port import Store
from tests.browser.conftest import Open, Raise
from tests.browser.pages import settled
from tests.browser.stage import Stage, until

MANY = 12


async def drained(stage: Stage) -> None:
    """Nobody takes any job from now on: an error where somebody waits, a warning where nobody does."""
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
async def test_an_error_is_shown_as_wide_as_the_page(open_window: Open, bare_stage: Stage, width: int) -> None:
    await drained(bare_stage)
    page = await (await open_window(bare_stage, viewport={"width": width, "height": 800})).go()
    await settled(page)
    await expect(page.get_by_test_id("health")).to_contain_text("1 error")
    whole = await width_of(page, ".facts")
    assert await width_of(page, ".health") == whole
    assert await width_of(page, ".findings .error") > 0.8 * whole


async def test_what_is_wrong_with_many_services_alike_is_said_of_a_few_and_counted(
    open_window: Open, raise_stage: Raise
) -> None:
    more = {f"idle_{n}": {"url": "http://127.0.0.1:9/", "limit": 1} for n in range(MANY)}
    stage = await raise_stage(**more)
    await drained(stage)
    page = await (await open_window(stage)).go()
    await settled(page)
    health = page.get_by_test_id("health")
    await expect(health).to_contain_text("1 error")
    shown = health.get_by_role("heading", name="No worker takes the jobs of a service")
    await expect(shown.first).to_be_visible()
    assert await shown.filter(visible=True).count() < MANY
    await health.get_by_text("more like it").click()
    await expect(health.get_by_text("all workers of idle_11 are draining", exact=False)).to_be_visible()


async def test_slots_are_not_called_free_while_the_line_does_not_answer(
    open_window: Open, bare_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await (await open_window(bare_stage)).go()
    await settled(page)
    service = page.get_by_test_id("service-gated")
    await expect(service.get_by_text("free", exact=True).first).to_be_visible()

    async def away(store: Store, process: Process | None, *_: object, **__: object) -> Sight:
        return Sight(await store.rules(), unknown="the dispatcher did not answer")

    monkeypatch.setattr(status, "look", away)
    await expect(service).to_contain_text("not known now")
    await expect(service.get_by_text("free", exact=True)).to_have_count(0)
    await expect(page.get_by_test_id("health")).to_contain_text("The line cannot be seen")
    totals = page.get_by_label("Totals")
    await expect(totals).to_contain_text("Slots in use–")
    await expect(totals).to_contain_text("Waiting–")
    monkeypatch.undo()
    await expect(service.get_by_text("free", exact=True).first).to_be_visible()
    await page.goto("about:blank")


async def test_the_doctors_moments_are_told_in_the_readers_time(
    open_window: Open, bare_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = Finding(
        "region-rests", Severity.WARNING, "a region rests", "nothing is sent until 2026-06-01T10:20:30.4Z", ""
    )

    async def told() -> list[Finding]:
        return [rests]

    monkeypatch.setattr(bare_stage.app.dashboard._findings, "_ask", told)
    page = await (await open_window(bare_stage, timezone_id="Asia/Kolkata")).go()
    await expect(page.get_by_test_id("health")).to_contain_text("Nothing is sent until 1 Jun, 15:50")
