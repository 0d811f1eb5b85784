"""Without a mouse: every control can be reached and left, and shows that it has the focus."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import dialog_of, settled

ENOUGH = 60

FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;  // between the last and the first
  const style = getComputedStyle(one);
  return {
    text: (one.getAttribute('aria-label') || one.innerText || '').trim(),
    seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== 'none',
  };
}"""


async def tab_to(page: Page, text: str) -> None:
    """Press Tab until this has the focus; every element on the way must show its focus."""
    passed = []
    for _ in range(ENOUGH):
        await page.keyboard.press("Tab")
        focused = await page.evaluate(FOCUSED)
        if focused is None:
            continue
        assert focused["seen"], f"nothing shows that {focused['text']!r} has the focus"
        if focused["text"] == text:
            return
        passed.append(focused["text"])
    raise AssertionError(f"Tab never came to {text!r}, but to {passed}")


async def test_a_service_is_paused_with_the_keyboard_alone(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    await settled(page)
    await tab_to(page, "Skip to content")
    await page.keyboard.press("Enter")
    await tab_to(page, "echo")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("echo")
    await settled(page)
    await tab_to(page, "Pause")
    await page.keyboard.press("Enter")
    await expect(dialog_of(page)).to_be_visible()
    await tab_to(page, "Pause echo")
    await page.keyboard.press("Enter")
    await expect(dialog_of(page)).to_have_count(0)
    assert await bare_stage.actions() == [("service.pause", "echo")]


async def test_the_first_tab_skips_to_the_content(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go("/workers")
    await settled(page)
    await tab_to(page, "Skip to content")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main")).to_be_focused()


async def test_letters_open_the_sections(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    await settled(page)
    for letter, section in (("j", "Jobs"), ("u", "Users"), ("d", "Dead letters"), ("a", "Audit"), ("o", "Overview")):
        await page.keyboard.press("g")
        await page.keyboard.press(letter)
        await expect(page.get_by_role("heading", level=1)).to_contain_text(section)


async def test_the_list_of_shortcuts_opens_and_closes_by_keys(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    await settled(page)
    await page.keyboard.press("?")
    await expect(dialog_of(page)).to_contain_text("Keyboard shortcuts")
    await page.keyboard.press("Escape")
    await expect(dialog_of(page)).to_have_count(0)


async def test_typing_into_a_field_triggers_no_shortcut(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go("/jobs")
    await settled(page)
    await page.keyboard.press("f")
    await page.keyboard.type("gu?t/")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Jobs")
    await expect(dialog_of(page)).to_have_count(0)


@pytest.mark.parametrize("keys", ["/", "Control+k"])
async def test_the_search_is_used_by_keys_alone(open_window: Open, bare_stage: Stage, keys: str) -> None:
    job = await bare_stage.submit("echo", "ada")
    await bare_stage.submit("echo", "adam")
    page = await (await open_window(bare_stage)).go("/workers")
    await settled(page)
    await page.keyboard.press(keys)
    results = dialog_of(page).get_by_role("option")
    await expect(dialog_of(page).get_by_role("combobox")).to_be_focused()
    await page.keyboard.type("ada")
    await expect(results).to_have_count(2)
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile("user_id=adam$"))
    await expect(dialog_of(page)).to_have_count(0)
    await settled(page)
    await page.keyboard.press(keys)
    await expect(dialog_of(page).get_by_role("combobox")).to_be_focused()
    await page.keyboard.type(job)
    await expect(results).to_contain_text(["echo"])
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("job-id")).to_have_text(job)
    await page.keyboard.press(keys)
    await expect(dialog_of(page).get_by_role("combobox")).to_be_focused()
    await page.keyboard.type("ada")
    await page.keyboard.press("Escape")
    await expect(dialog_of(page)).to_have_count(0)
