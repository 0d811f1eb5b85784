"""The gateway stops and returns on its port: the page reports it, and recovers by itself."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import job_link, settled

# Chromium's messages about an unreachable server.
AWAY = r"ERR_CONNECTION_REFUSED|WebSocket connection to|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET"

MARK = "() => { window.__before = true; }"


async def test_a_page_reconnects_to_a_restarted_gateway(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    window.expect(AWAY)
    page = await window.go("/jobs")
    await settled(page)
    first = await bare_stage.submit("echo")
    await expect(job_link(page, first)).to_be_visible()
    await page.evaluate(MARK)

    await bare_stage.stop()
    await expect(page.get_by_test_id("connection")).to_contain_text("Reconnecting")
    # The last known state stays visible.
    await expect(job_link(page, first)).to_be_visible()
    meanwhile = await bare_stage.submit("echo", "bob")

    await bare_stage.start()
    await settled(page)
    await expect(job_link(page, meanwhile)).to_be_visible()
    assert await page.evaluate("() => window.__before"), "the page was reloaded"


async def test_an_action_on_an_unreachable_gateway_is_reported(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    window.expect(AWAY)
    page = await window.go("/services/echo")
    await settled(page)
    await page.get_by_role("button", name="Pause").click()
    await bare_stage.stop()
    await page.locator("dialog[open]").get_by_test_id("confirm").click()
    await expect(page.locator("dialog[open]").get_by_role("alert")).to_contain_text("does not respond")
    assert await bare_stage.actions() == []
