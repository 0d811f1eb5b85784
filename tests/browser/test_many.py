"""A long list stays light, as only the visible rows are drawn, and many services can be sorted."""

from __future__ import annotations

import asyncio

from playwright.async_api import expect

from fairlead.domain.submission import Submission
from fairlead.gateway.dashboard.views import MAX_AUDITED
from tests.browser.conftest import Open, Raise
from tests.browser.gateway_site import Stage
from tests.browser.pages import settled

JOBS = 3000
MOST_DRAWN = 150
# In one call: the button disappears when all is loaded, and moves while more is.
OLDER = """() => [...document.querySelectorAll("main button")]
    .find((each) => each.textContent.startsWith("Older") && !each.disabled)?.click()"""


async def test_thousands_of_jobs_are_scrolled_through_with_few_rows_drawn(open_window: Open, bare_stage: Stage) -> None:
    wanted = [Submission("echo", {"n": n}, f"user {n:04}", delay=3600) for n in range(JOBS)]
    await bare_stage.app.submit_many(wanted)
    page = await (await open_window(bare_stage)).go("/jobs")
    await settled(page)
    rows = page.get_by_role("main").get_by_role("row")
    # Down to the first job, page by page, as the end of the loaded rows becomes visible.
    oldest = page.get_by_role("main").get_by_text("user 0000")
    for _ in range(2 * JOBS // 50):
        if await oldest.count():
            break
        await page.evaluate("() => window.scrollTo(0, document.body.scrollHeight)")
        await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert await rows.count() < MOST_DRAWN
        await page.evaluate(OLDER)
    await expect(oldest).to_be_visible()


async def test_the_audit_is_read_back_to_its_first_row(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("echo", delay=3600)
    await bare_stage.app.cancel(job, who="the day shift")
    await asyncio.gather(*(bare_stage.app.pause("echo", who=f"guard {n:03}") for n in range(MAX_AUDITED)))
    page = await (await open_window(bare_stage)).go("/audit")
    await settled(page)
    rows = page.get_by_test_id("audit").locator("tbody tr")
    await expect(rows).to_have_count(MAX_AUDITED)
    first = rows.filter(has_text="the day shift")
    await expect(first).to_have_count(0)
    await page.get_by_role("button", name="Older actions").click()
    await expect(first.locator(f"a[href='#/jobs/{job}']")).to_be_visible()
    await expect(page.get_by_role("button", name="Older actions")).to_have_count(0)
    # A new row pushes out the last of the live rows, which must not be lost between them and the rows read before.
    await bare_stage.app.unpause("echo", who="the night shift")
    await expect(rows.first).to_contain_text("the night shift")
    await expect(rows).to_have_count(MAX_AUDITED + 2)


async def test_the_busiest_services_can_be_shown_first(open_window: Open, raise_stage: Raise) -> None:
    more = {f"idle_{n}": {"url": "http://127.0.0.1:9/", "limit": 1} for n in range(5)}
    stage = await raise_stage(**more)
    await stage.app.pause("whisper")
    for _ in range(5):
        await stage.submit("whisper")
    page = await (await open_window(stage)).go()
    await settled(page)
    first = page.locator("[data-service]").first
    await page.get_by_label("Order").select_option("by name")
    await expect(first).not_to_have_attribute("data-service", "whisper")
    await page.get_by_label("Order").select_option("most waiting")
    await expect(first).to_have_attribute("data-service", "whisper")
