"""Tests of the strict window: if it noticed nothing, all other tests would pass."""

from __future__ import annotations

import pytest
from playwright.async_api import Error, Page, Route

from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.strict_window import Window, Windows
from tests.browser.xss import HANDLERS

POLICY = "default-src 'none'; script-src 'self'"
PAGE = "/watched"


async def watched(open_window: Open, stage: Stage, policy: str = "") -> tuple[Window, Page]:
    """An empty page, and a window whose complaints do not fail the test."""
    window = await open_window(stage)
    window.expect("")

    async def fulfil(route: Route) -> None:
        headers = {"Content-Security-Policy": policy} if policy else {}
        await route.fulfill(body="<!doctype html><body>", content_type="text/html", headers=headers)

    await window.context.route(f"**{PAGE}", fulfil)
    await window.page.goto(stage.url + PAGE)
    return window, window.page


async def noticed(open_window: Open, stage: Stage, script: str, policy: str = "") -> list[str]:
    """The complaints of the window when this script runs in a page."""
    window, page = await watched(open_window, stage, policy)
    await page.evaluate(f"() => {{ {script} }}")
    # All earlier messages of the page have arrived when this call returns.
    await page.evaluate("() => new Promise((done) => setTimeout(done, 50))")
    return window.complaints


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        ("console.error('oh no')", "console error: oh no"),
        ("setTimeout(() => { throw new Error('thrown') })", "exception: thrown"),
        ("alert(1)", "dialog: alert 1"),
        ("fetch('http://elsewhere.example/').catch(() => 0)", "elsewhere: http://elsewhere.example/"),
        ("new Image().src = 'http://192.0.2.1/pixel'", "elsewhere: http://192.0.2.1/pixel"),
    ],
)
async def test_a_window_notices(open_window: Open, bare_stage: Stage, script: str, seen: str) -> None:
    complaints = await noticed(open_window, bare_stage, script)
    assert any(each.startswith(seen) for each in complaints), complaints


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        (
            "document.body.innerHTML = '<p onclick=\"x()\">'; document.querySelector('p').click()",
            "csp: script-src-attr: inline",
        ),
        (
            "document.body.append(Object.assign(document.createElement('script'), {text: 'x'}))",
            "csp: script-src-elem: inline",
        ),
        ("document.body.innerHTML = '<p style=\"color:red\">'", "csp: style-src-attr: inline"),
    ],
)
async def test_a_window_notices_violations_of_the_policy(
    open_window: Open, bare_stage: Stage, script: str, seen: str
) -> None:
    complaints = await noticed(open_window, bare_stage, script, POLICY)
    assert any(each.startswith(seen) for each in complaints), complaints


@pytest.mark.parametrize("elsewhere", ["http://elsewhere.example/", "http://192.0.2.1/"])
async def test_the_browser_reaches_this_machine_only(open_window: Open, bare_stage: Stage, elsewhere: str) -> None:
    """Even without a window that watches: its resolver knows no other host."""
    window = await open_window(bare_stage)
    page = await (await window.context.browser.new_context()).new_page()  # type: ignore[union-attr]
    with pytest.raises(Error, match="ERR_NAME_NOT_RESOLVED"):
        await page.goto(elsewhere)
    await page.context.close()


async def test_a_page_that_treats_text_as_markup_is_noticed(open_window: Open, bare_stage: Stage) -> None:
    """Without a policy, most texts of the corpus do harm at once, and the window notices."""
    window, page = await watched(open_window, bare_stage)
    harmful = 0
    for text in HANDLERS:
        window.complaints.clear()
        await page.evaluate("(text) => { delete window.__pwned; document.body.innerHTML = text; }", text)
        await page.evaluate("() => new Promise((done) => setTimeout(done, 30))")
        harmful += bool(window.complaints or await page.evaluate("() => window.__pwned"))
    assert harmful > len(HANDLERS) / 2


async def test_a_kept_window_remembers_nothing_of_the_last_test(all_windows: Windows, bare_stage: Stage) -> None:
    async with all_windows.opened(bare_stage.url) as first:
        await first.go()
        await first.page.evaluate("() => { localStorage.last = sessionStorage.last = document.cookie = 'last=1'; }")
        await first.page.evaluate("() => console.error('oh no')")
        page = first.page
    assert any("oh no" in each for each in first.complaints)
    async with all_windows.opened(bare_stage.url) as second:
        assert second.page is page
        await second.go()
        found = await page.evaluate("() => [localStorage.last, sessionStorage.last, document.cookie]")
        assert (found, second.complaints) == ([None, None, ""], [])
        assert await second.context.cookies() == []
    async with all_windows.opened(bare_stage.url) as third:
        assert third.page is not page, "a test that has the context may have changed it"
