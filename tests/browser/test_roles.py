"""Roles: a viewer sees everything and can change nothing, a user sees its own jobs."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.browser.conftest import Open, Raise
from tests.browser.pages import PAGES, SECTIONS, job_link, route_of, settled
from tests.browser.sample_data import BATCH, add_sample_data
from tests.browser.sign_in import sign_in

# Buttons that only change the display.
HARMLESS = (
    r"Sign out|Switch to|Keyboard shortcuts|Menu|Copy|Show|Hide|More|Older|Newer|Filter|Clear|Expand|Collapse|Close"
)

ACT = """async (path) => (await fetch(path, {method: 'POST', headers: {'Content-Type': 'application/json'},
  body: '{}'})).status"""


async def acting_buttons(page: Page) -> list[str]:
    names: list[str] = await page.locator("main button:not(.sort):visible").all_inner_texts()
    return [name for name in names if name.strip() and not re.search(HARMLESS, name)]


async def test_a_viewer_sees_every_page_and_no_action(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(admin_key="an admin key")
    sample = await add_sample_data(stage)
    viewer = await stage.app.create_key("viewer", name="wall screen")
    window = await open_window(stage)
    page = await sign_in(window, viewer.text)
    for name in PAGES:
        await window.go(route_of(name, sample))
        await settled(page)
        assert await acting_buttons(page) == [], name


async def test_an_admin_has_actions_where_a_viewer_has_none(open_window: Open, raise_stage: Raise) -> None:
    """Otherwise the test above would pass for a dashboard without actions."""
    stage = await raise_stage(admin_key="an admin key")
    sample = await add_sample_data(stage)
    window = await open_window(stage)
    page = await sign_in(window, "an admin key")
    for name in ("service", "running job", "failed job", "batch", "dead letters", "workers"):
        await window.go(route_of(name, sample))
        await settled(page)
        assert await acting_buttons(page) != [], name


async def test_hidden_actions_are_refused_by_the_gateway_too(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(admin_key="an admin key")
    viewer = await stage.app.create_key("viewer")
    window = await open_window(stage)
    window.expect("403")
    page = await sign_in(window, viewer.text)
    job = await stage.submit("gated")
    for path in ("/admin/services/echo/pause", f"/api/v1/jobs/{job}/cancel", "/admin/queue-dead/purge"):
        assert await page.evaluate(ACT, path) == 403, path


async def test_a_user_sees_its_own_jobs_and_batches_and_nothing_else(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(admin_key="an admin key")
    sample = await add_sample_data(stage)
    ada = await stage.app.create_key("user", user_id="ada", name="ada's laptop")
    window = await open_window(stage)
    page = await sign_in(window, ada.text)
    sections = page.get_by_role("navigation").get_by_role("link")
    await expect(sections).to_have_text(["Jobs", "Batches", "Usage", "Schedules", "Webhooks"])
    await window.go("/jobs")
    await settled(page)
    await expect(job_link(page, sample.running)).to_be_visible()
    for other in (sample.waiting, sample.failed, sample.two_steps):
        await expect(job_link(page, other)).to_have_count(0)
    await window.go("/batches")
    await settled(page)
    await expect(page.get_by_role("main")).to_contain_text(BATCH)


async def test_another_users_job_is_not_found(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(admin_key="an admin key")
    sample = await add_sample_data(stage)
    ada = await stage.app.create_key("user", user_id="ada")
    window = await open_window(stage)
    page = await sign_in(window, ada.text)
    await window.go(f"/jobs/{sample.failed}")
    await expect(page.get_by_role("main")).to_contain_text("No such job")
    assert "never work" not in await page.locator("body").inner_text()


async def test_a_service_key_sees_the_queue_and_acts_on_jobs_only(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(admin_key="an admin key")
    job = await stage.submit("gated")
    await stage.running(job)
    key = await stage.app.create_key("service")
    page = await sign_in(window := await open_window(stage), key.text)
    await expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(
        [*SECTIONS[:5], "Schedules", "Webhooks"]
    )
    await window.go("/services/gated")
    await settled(page)
    assert await acting_buttons(page) == []
    await window.go(f"/jobs/{job}")
    await settled(page)
    assert await acting_buttons(page) == ["Cancel"]


async def test_an_admin_has_every_section(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(admin_key="an admin key")
    window = await open_window(stage)
    page = await sign_in(window, "an admin key")
    await expect(page.get_by_role("navigation").get_by_role("link")).to_have_text(SECTIONS)
