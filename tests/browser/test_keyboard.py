"""Without a mouse: everything is reached, seen to be reached, and left again."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.pages import dialog_of, settled
from tests.browser.stage import Stage

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
    """Press Tab until this has the focus; whatever had it on the way must have shown it."""
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
    await tab_to(page, "Skip to the content")
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
    await tab_to(page, "Skip to the content")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("main")).to_be_focused()


async def test_letters_lead_to_the_sections(open_window: Open, bare_stage: Stage) -> None:
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


async def test_what_is_typed_into_a_field_is_no_shortcut(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go("/jobs")
    await settled(page)
    await page.keyboard.press("/")
    await page.keyboard.type("gu?t")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Jobs")
    await expect(dialog_of(page)).to_have_count(0)
