"""Accessibility of every page: light and dark, wide and narrow, with and without a mouse."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page, expect

from tests.browser import axe
from tests.browser.conftest import Open, Raise
from tests.browser.gateway_site import Stage
from tests.browser.pages import PAGES, dialog_of, route_of, settled
from tests.browser.sample_data import SampleData
from tests.browser.sign_in import NOT_YET, key_field

Sampled = tuple[Stage, SampleData]
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}

# The first elements that are wider than the screen.
WIDER_THAN_THE_SCREEN = """() => {
  if (document.scrollingElement.scrollWidth <= window.innerWidth) return [];
  const sticksOut = (element) => element.getBoundingClientRect().right > window.innerWidth + 1;
  const found = [...document.querySelectorAll('body *')].filter(sticksOut);
  return found.slice(0, 5).map((each) => each.outerHTML.slice(0, 120));
}"""


async def in_both_themes(page: Page) -> list[str]:
    """The dark theme differs in its colours only, so only the rule about them is checked again."""
    found = await axe.serious_problems(page)
    await page.emulate_media(color_scheme="dark")
    found += await axe.serious_problems(page, "color-contrast")
    await page.emulate_media(color_scheme="light")
    return found


async def test_axe_finds_nothing_serious_on_any_page(open_window: Open, sampled: Sampled) -> None:
    stage, sample = sampled
    window = await open_window(stage, color_scheme="light")
    problems = {}
    for name in PAGES:
        page = await window.go(route_of(name, sample))
        await settled(page)
        problems[name] = await in_both_themes(page)
    assert problems == {name: [] for name in PAGES}


async def test_axe_finds_nothing_serious_in_a_dialog(open_window: Open, sampled: Sampled) -> None:
    stage, sample = sampled
    window = await open_window(stage, color_scheme="light")
    page = await window.go(route_of("service", sample))
    await settled(page)
    await page.get_by_role("button", name="Pause").click()
    await expect(dialog_of(page)).to_be_visible()
    assert await in_both_themes(page) == []


async def test_axe_finds_nothing_serious_in_the_search(open_window: Open, sampled: Sampled) -> None:
    window = await open_window(sampled[0], color_scheme="light")
    page = await window.go()
    await settled(page)
    await page.get_by_role("button", name="Search", exact=True).click()
    await dialog_of(page).get_by_role("combobox").fill("e")
    await expect(dialog_of(page).get_by_role("option").first).to_be_visible()
    assert await in_both_themes(page) == []


async def test_axe_finds_nothing_serious_in_the_sign_in_form(open_window: Open, raise_stage: Raise) -> None:
    window = await open_window(await raise_stage(admin_key="an admin key"), color_scheme="light")
    window.expect(NOT_YET)
    page = await window.go()
    await expect(key_field(page)).to_be_visible()
    assert await in_both_themes(page) == []


async def test_axe_finds_a_serious_problem_where_there_is_one(open_window: Open, sampled: Sampled) -> None:
    window = await open_window(sampled[0])
    page = await window.go()
    await settled(page)
    await page.evaluate("() => document.querySelector('main').append(document.createElement('button'))")
    assert any(problem.startswith("button-name (critical)") for problem in await axe.serious_problems(page))


async def test_no_page_scrolls_sideways_on_a_phone(open_window: Open, sampled: Sampled) -> None:
    stage, sample = sampled
    window = await open_window(stage, **PHONE)
    wide = {}
    for name in PAGES:
        page = await window.go(route_of(name, sample))
        await settled(page)
        wide[name] = await page.evaluate(WIDER_THAN_THE_SCREEN)
    assert wide == {name: [] for name in PAGES}


async def test_the_chosen_theme_survives_a_reload(open_window: Open, sampled: Sampled) -> None:
    window = await open_window(sampled[0], color_scheme="light")
    page = await window.go()
    await settled(page)
    light = await _background(page)
    await page.get_by_role("button", name="Switch to dark colours").click()
    dark = await _background(page)
    assert dark != light
    await page.reload()
    await settled(page)
    assert await _background(page) == dark


async def _background(page: Page) -> str:
    return str(await page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor"))
