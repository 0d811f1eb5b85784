"""Layout: nothing is cut off or overlaps, however long a name is."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, expect

from fairlead.observe.dashboard.history import Sum
from tests.browser.conftest import Open, Raise
from tests.browser.gateway_site import Stage
from tests.browser.pages import settled

LONG = "a very long name of a user " * 6
PHONE = {"width": 390, "height": 844}
LONGEST = 30


async def is_cut(element: Locator) -> bool:
    return bool(await element.evaluate("(element) => element.scrollWidth > element.clientWidth"))


async def fits(inner: Locator, outer: Locator) -> bool:
    one, other = await inner.bounding_box(), await outer.bounding_box()
    assert one is not None
    assert other is not None
    return one["x"] >= other["x"] and one["x"] + one["width"] <= other["x"] + other["width"] + 1


@pytest.mark.parametrize("limit", [2, 5])
async def test_a_taken_slot_names_its_user(open_window: Open, raise_stage: Raise, limit: int) -> None:
    stage = await raise_stage(gated={"limit": limit})
    for _ in range(limit):
        await stage.running(await stage.submit("gated", "dora"))
    page = await (await open_window(stage)).go()
    await settled(page)
    names = page.get_by_test_id("service-gated").locator(".taken .slot-name")
    await expect(names).to_have_count(limit)
    assert not [each for each in await names.all() if await is_cut(each)]


@pytest.mark.parametrize("route", ["/workers", "/jobs", "/users"])
async def test_a_long_name_is_shortened_with_an_ellipsis(open_window: Open, bare_stage: Stage, route: str) -> None:
    await bare_stage.running(await bare_stage.submit("gated", LONG))
    page = await (await open_window(bare_stage)).go(route)
    await settled(page)
    name = page.get_by_role("main").get_by_text(LONG[:20]).first
    cell = page.locator("main td").filter(has_text=LONG[:20]).first
    card = page.locator("main .card, main .table-box").filter(has_text=LONG[:20]).first
    await expect(name).to_have_css("text-overflow", "ellipsis")
    assert await is_cut(name)
    assert await fits(name, cell)
    assert await fits(cell, card)


async def test_a_worker_of_many_services_counts_them_and_lists_them_on_demand(
    open_window: Open, raise_stage: Raise
) -> None:
    more = {f"idle_{n}": {"url": "http://127.0.0.1:9/", "limit": 1} for n in range(LONGEST)}
    page = await (await open_window(await raise_stage(**more))).go("/workers")
    await settled(page)
    last = page.get_by_text(f"idle_{LONGEST - 1}")
    await expect(last).to_be_hidden()
    await page.locator("main summary").filter(has_text="services").click()
    await expect(last).to_be_visible()


async def test_no_figure_of_a_service_is_cut_off_on_a_phone(
    open_window: Open, bare_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sum, "wait", lambda _, share: 90.0 if share == 0.5 else 1230.0)
    await bare_stage.running(await bare_stage.submit("gated"))
    page = await (await open_window(bare_stage, viewport=PHONE)).go("/services/gated")
    await settled(page)
    figures = page.get_by_label("Figures").locator("dd")
    await expect(figures.filter(has_text="p95 20 min")).to_be_visible()
    assert not [await each.inner_text() for each in await figures.all() if await is_cut(each)]


async def test_only_small_services_side_by_side_share_a_row(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    await settled(page)

    async def width_of(service: str) -> float:
        box = await page.get_by_test_id(f"service-{service}").bounding_box()
        assert box is not None
        return box["width"]

    whole = await width_of("echo")
    assert await width_of("gated") < whole / 2, "its neighbour is small as well"
    assert await width_of("confiding") == whole, "it would be alone in its row"


async def test_a_worker_with_many_calls_shows_a_few_and_the_rest_on_demand(
    open_window: Open, raise_stage: Raise
) -> None:
    stage = await raise_stage(gated={"limit": LONGEST})
    for _ in range(LONGEST):
        await stage.running(await stage.submit("gated"))
    page = await (await open_window(stage)).go("/workers")
    rows = page.locator("main tbody tr")
    await expect(rows.first).to_be_visible()
    assert await rows.count() < LONGEST
    await page.get_by_role("button", name=f"Show all {LONGEST}").click()
    await expect(rows).to_have_count(LONGEST)
