"""Every page with sample data of every kind."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import PAGES, SECTIONS, job_link, route_of, settled, unfold
from tests.browser.sample_data import BATCH, SampleData
from tests.browser.strict_window import PATIENCE_MS

Sampled = tuple[Stage, SampleData]

# The text that a page must contain, and the user it must name.
SAYS = {
    "overview": ["gated", "whisper", "paused", "limit changed", "1 of 1"],
    "service": ["gated", "cyn", "high", "bob", "low"],
    "service with regions": ["gpu", "eu", "us"],
    "jobs": ["ada", "bob", "completed", "running", "scheduled", "cancelled", "failed", "retrying"],
    "running job": ["gated", "ada", "running"],
    "waiting job": ["gated", "bob", "Why it waits", "full (1 of 1)"],
    "retrying job": ["gpu", "fay", "retrying"],
    "failed job": ["broken", "eve", "this input will never work"],
    "finished job": ["echo_then_shout", "cyn", "completed", "shout"],
    "users": ["ada", "bob", "cyn"],
    "batches": [BATCH, "ada"],
    "batch": [BATCH, "q0", "q3", "failed"],
    "dead letters": ["this input will never work", "not yet", "Retry", "Purge"],
    "workers": ["api", "worker", "manager", "echo"],
    "schedules": ["news", "echo", "cyn", "0 6 * * * Europe/Berlin", "Run now", "Pause"],
    "schedule": ["news", "Next times", "History", "submitted", "run now"],
    "webhooks": ["Endpoints", "https://receiver.invalid/hooks", "Deliveries", "job.completed", "pending"],
    "audit": ["ops", "service.limit", "shout", "service.pause", "whisper"],
    "usage": ["ada", "cyn", "Calls by day", "Slot time", "CSV by day"],
}


HEAR_VERDICTS = """
window.__verdicts = [];
new MutationObserver(() => window.__verdicts.push(document.querySelector('.verdict')?.innerText))
  .observe(document, {subtree: true, childList: true, characterData: true});
"""


async def test_every_page_shows_the_sample_data_one_heading_and_its_landmarks(
    open_window: Open, sampled: Sampled
) -> None:
    """One window for all of them, since a new one takes longer than a page; each page is loaded afresh."""
    stage, sample = sampled
    window = await open_window(stage)
    assert SAYS.keys() == PAGES.keys()
    for name, texts in SAYS.items():
        page = await window.go(route_of(name, sample))
        await page.reload()
        await settled(page)
        for text in texts:
            await expect(page.get_by_role("main"), f"the page {name!r}").to_contain_text(text)
        for role in ("banner", "navigation", "main"):
            await expect(page.get_by_role(role)).to_have_count(1)
        await expect(page.get_by_role("heading", level=1)).to_have_count(1)
        assert "Fairlead" in await page.title()


async def test_every_section_is_one_click_away(open_window: Open, sampled: Sampled) -> None:
    page = await (await open_window(sampled[0])).go()
    for section in [*SECTIONS[1:], SECTIONS[0]]:
        link = page.get_by_role("navigation").get_by_role("link", name=section)
        await link.click()
        await settled(page)
        await expect(link).to_have_attribute("aria-current", "page")
        await expect(page.get_by_role("heading", level=1)).to_contain_text(section)


async def test_links_lead_from_a_service_to_a_job_and_back(open_window: Open, sampled: Sampled) -> None:
    stage, sample = sampled
    page = await (await open_window(stage)).go()
    await page.get_by_test_id("service-gated").get_by_role("link", name="gated", exact=True).click()
    await job_link(page, sample.waiting).click()
    await expect(page.get_by_test_id("job-id")).to_have_text(sample.waiting)
    await page.go_back()
    await expect(page.get_by_role("heading", level=1)).to_have_text("gated")


async def test_jobs_are_filtered_by_the_address(open_window: Open, sampled: Sampled) -> None:
    stage, sample = sampled
    window = await open_window(stage)
    page = await window.go("/jobs?status=FAILED&user_id=eve")
    await settled(page)
    for job in (sample.failed, sample.resumable):
        await expect(job_link(page, job)).to_be_visible()
    await expect(job_link(page, sample.running)).to_have_count(0)
    await window.go("/jobs?feature_name=gpu")
    await expect(job_link(page, sample.retrying)).to_be_visible()
    await expect(job_link(page, sample.failed)).to_have_count(0)


async def test_typed_filters_change_the_list_and_the_address(open_window: Open, sampled: Sampled) -> None:
    stage, sample = sampled
    page = await (await open_window(stage)).go("/jobs")
    await settled(page)
    await page.get_by_role("search").get_by_label("User").fill("fay")
    await expect(job_link(page, sample.running)).to_have_count(0)
    await expect(job_link(page, sample.retrying)).to_be_visible()
    await expect(page).to_have_url(f"{stage.url}/#/jobs?user_id=fay")
    await page.get_by_role("link", name="Clear").click()
    await expect(job_link(page, sample.running)).to_be_visible()


async def test_findings_are_shown_with_their_fix(open_window: Open, bare_stage: Stage) -> None:
    await bare_stage.app.pause("echo", who="ops")
    await bare_stage.submit("echo")
    window = await open_window(bare_stage)
    await window.context.add_init_script(HEAR_VERDICTS)
    page = await window.go()
    await expect(page.get_by_test_id("health")).to_contain_text("Unpause", timeout=2 * PATIENCE_MS)
    # No verdict is shown before the first check.
    assert "Healthy" not in await page.evaluate("() => window.__verdicts.join()")


async def test_without_findings_the_page_reports_that_all_is_well(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    await expect(page.get_by_test_id("health")).to_contain_text("Healthy", timeout=2 * PATIENCE_MS)


@pytest.mark.parametrize("route", ["/jobs/01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f", "/jobs/nonsense", "/services/nope"])
async def test_a_missing_object_is_explained(open_window: Open, sampled: Sampled, route: str) -> None:
    page = await (await open_window(sampled[0])).go(route)
    await expect(page.get_by_role("main")).to_contain_text("no ")
    await expect(page.locator("main .loading")).to_have_count(0)


async def test_an_unknown_address_is_explained(open_window: Open, sampled: Sampled) -> None:
    page = await (await open_window(sampled[0])).go("/nowhere/at/all")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Page not found")


async def test_a_result_is_copied_as_a_whole(open_window: Open, sampled: Sampled) -> None:
    stage, sample = sampled
    window = await open_window(stage, permissions=["clipboard-read", "clipboard-write"])
    page = await window.go(f"/jobs/{sample.completed}")
    await unfold(page, "Input")
    await page.get_by_role("button", name="Copy Input").click()
    await expect(page.get_by_test_id("toasts")).to_contain_text("Copied")
    assert "a lighthouse at dawn" in await page.evaluate("() => navigator.clipboard.readText()")
