"""A long list stays light, as only the rows in sight are drawn, and many services can be put in order."""

from __future__ import annotations

import asyncio

from playwright.async_api import expect

from fairlead.gateway.dashboard.looks import MOST_AUDITED
from fairlead.runtime.submission import Submission
from tests.browser.conftest import Open, Raise
from tests.browser.pages import settled
from tests.browser.stage import Stage

JOBS = 3000
MOST_DRAWN = 150
# In one go: the button goes when all is loaded, and moves while more is.
OLDER = """() => [...document.querySelectorAll("main button")]
    .find((each) => each.textContent.startsWith("Older") && !each.disabled)?.click()"""


async def test_thousands_of_jobs_are_scrolled_through_with_few_rows_drawn(open_window: Open, bare_stage: Stage) -> None:
    wanted = [Submission("echo", {"n": n}, f"user {n:04}", delay=3600) for n in range(JOBS)]
    await bare_stage.app.submit_many(wanted)
    page = await (await open_window(bare_stage)).go("/jobs")
    await settled(page)
    rows = page.get_by_role("main").get_by_role("row")
    # To the very first, page by page, as the end of what is loaded comes into sight.
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
    await asyncio.gather(*(bare_stage.app.pause("echo", who=f"guard {n:03}") for n in range(MOST_AUDITED)))
    page = await (await open_window(bare_stage)).go("/audit")
    await settled(page)
    rows = page.get_by_test_id("audit").locator("tbody tr")
    await expect(rows).to_have_count(MOST_AUDITED)
    first = rows.filter(has_text="the day shift")
    await expect(first).to_have_count(0)
    await page.get_by_role("button", name="Older actions").click()
    await expect(first.locator(f"a[href='#/jobs/{job}']")).to_be_visible()
    await expect(page.get_by_role("button", name="Older actions")).to_have_count(0)
    # The last of the live rows gives way to a new one, and is not lost between them and what was read.
    await bare_stage.app.unpause("echo", who="the night shift")
    await expect(rows.first).to_contain_text("the night shift")
    await expect(rows).to_have_count(MOST_AUDITED + 2)


async def test_the_services_with_most_to_do_can_be_shown_first(open_window: Open, raise_stage: Raise) -> None:
    more = {f"idle_{n}": {"url": "http://127.0.0.1:9/", "limit": 1} for n in range(5)}
    stage = await raise_stage(**more)
    await stage.app.pause("whisper")
    for _ in range(5):
        await stage.submit("whisper")
    page = await (await open_window(stage)).go()
    await settled(page)
    first = page.locator("[data-service]").first
    await expect(first).not_to_have_attribute("data-service", "whisper")
    await page.get_by_label("Order").select_option("most waiting")
    await expect(first).to_have_attribute("data-service", "whisper")
