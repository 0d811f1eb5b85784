"""A long list stays light: only the rows in sight are drawn."""

from __future__ import annotations

from playwright.async_api import expect

from fairlead.runtime.submission import Submission
from tests.browser.conftest import Open
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
