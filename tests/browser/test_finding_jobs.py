"""Finding jobs and acting on many: filters by service and error, selection, rows that lead to their job."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.browser.conftest import Open, Raise
from tests.browser.gateway_site import Stage
from tests.browser.pages import ask, confirm, settled


async def some_jobs(stage: Stage) -> dict[str, list[str]]:
    jobs = {
        "broken": [await stage.submit("broken", user) for user in ("ada", "bob")],
        "scheduled": [await stage.submit("echo", "cyn", delay=3600)],
        "echo": [await stage.submit("echo", "dee")],
    }
    await stage.ended(*jobs["broken"], *jobs["echo"])
    return jobs


async def test_jobs_are_filtered_by_error_code_and_service(open_window: Open, bare_stage: Stage) -> None:
    jobs = await some_jobs(bare_stage)
    page = await (await open_window(bare_stage)).go("/jobs")
    await settled(page)
    rows = page.locator("tr[data-job-id]")
    await expect(rows).to_have_count(4)
    await page.get_by_label("Error code").fill("PERMANENT")
    await expect(rows).to_have_count(2)
    await expect(page).to_have_url(re.compile("error_code=PERMANENT"))
    await page.get_by_label("Error code").fill("")
    await page.get_by_label("Service").fill("echo")
    await expect(rows).to_have_count(2)
    await expect(page.locator(f"tr[data-job-id='{jobs['echo'][0]}']")).to_be_visible()


async def test_selected_jobs_are_retried_or_cancelled(open_window: Open, bare_stage: Stage) -> None:
    jobs = await some_jobs(bare_stage)
    page = await (await open_window(bare_stage)).go("/jobs")
    await settled(page)
    await page.get_by_label("Select all shown jobs").check()
    picked = page.get_by_label("Selected jobs")
    await expect(picked).to_contain_text("4 selected")
    await ask(page, picked.get_by_role("button", name="Retry 2"), says="permanent error")
    await confirm(page)
    await expect(page.get_by_test_id("toasts")).to_contain_text("2 jobs are queued again")
    await ask(page, picked.get_by_role("button", name="Cancel 1"), says="1 job ends as cancelled")
    await confirm(page)
    await bare_stage.reaches(jobs["scheduled"][0], "CANCELLED")
    actions = [action for action, _ in await bare_stage.actions()]
    assert actions == ["job.cancel", "job.retry", "job.retry"]
    await picked.get_by_role("button", name="Clear selection").click()
    await expect(picked).to_have_count(0)


async def test_a_row_leads_to_its_job(open_window: Open, bare_stage: Stage) -> None:
    jobs = await some_jobs(bare_stage)
    page = await (await open_window(bare_stage)).go("/jobs")
    await page.locator(f"tr[data-job-id='{jobs['echo'][0]}'] .c-priority").click()
    await expect(page.get_by_test_id("job-id")).to_have_text(jobs["echo"][0])


async def test_times_are_relative_with_utc_on_hover(open_window: Open, bare_stage: Stage) -> None:
    jobs = await some_jobs(bare_stage)
    page = await (await open_window(bare_stage)).go("/jobs")
    time = page.locator(f"tr[data-job-id='{jobs['echo'][0]}'] .c-submitted time")
    await expect(time).to_have_text(re.compile(r"^\d+ (s|min) ago$"))
    await expect(time).to_have_attribute("title", re.compile(r"\d\d:\d\d:\d\d UTC$"))


async def test_many_slots_are_dense_and_services_in_trouble_come_first(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(zebra={"url": "http://127.0.0.1:9/", "limit": 17})
    await stage.app.pause("zebra", who="ops")
    page = await (await open_window(stage)).go()
    await settled(page)
    await expect(page.locator("[data-service]").first).to_have_attribute("data-service", "zebra")
    await expect(page.get_by_test_id("service-zebra").locator(".slots")).to_have_class(re.compile("dense"))


async def test_the_range_of_the_charts_is_chosen(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    await settled(page)
    await page.get_by_label("Range of the charts").select_option("last 2 hours")
    await expect(page.get_by_role("heading", name="Calls, last 2 hours")).to_be_visible()
    await page.locator(".as-table summary").first.click()
    await expect(page.locator(".numbers tbody tr")).to_have_count(120)
