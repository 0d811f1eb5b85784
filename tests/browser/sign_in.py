"""Signing in as a user does: with a key, in the form."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect

from tests.browser.strict_window import Window

# The page asks who is signed in before it shows the form, and Chromium logs every refused request.
NOT_YET = r"401 \(Unauthorized\).*/session"


def key_field(page: Page) -> Locator:
    return page.get_by_label("Key", exact=True)


async def enter(window: Window, key: str, route: str = "/") -> Page:
    """Open the page and enter this key."""
    window.expect(NOT_YET)
    page = await window.go(route)
    await key_field(page).fill(key)
    await page.get_by_role("button", name="Sign in").click()
    return page


async def sign_in(window: Window, key: str, route: str = "/") -> Page:
    page = await enter(window, key, route)
    await expect(page.get_by_test_id("connection")).to_contain_text("Live")
    return page
