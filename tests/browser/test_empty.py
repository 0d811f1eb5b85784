"""An empty page explains what it will show and how to fill it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import httpx2
from playwright.async_api import expect

from fairlead import Config, Fairlead
from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import settled
from tests.browser.strict_window import PATIENCE_MS
from tests.integration.gateway_site import Gate


async def test_an_empty_page_explains_itself(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    for route in ("/", "/jobs", "/users", "/batches", "/dead", "/schedules", "/webhooks", "/audit"):
        page = await window.go(route)
        await page.reload()
        await settled(page)
        await expect(page.get_by_test_id("empty"), route).to_be_visible()


async def test_the_request_shown_on_the_page_submits_a_job(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    shown = await page.get_by_test_id("empty").locator("pre").inner_text()
    program, _, url, _, header, _, body = shlex.split(shown.replace("\\\n", ""))
    assert program == "curl"
    name, _, value = header.partition(": ")
    async with httpx2.AsyncClient() as client:
        answer = await client.post(url, headers={name: value}, content=body)
    assert answer.status_code == 202, answer.text
    assert json.loads(body)["user_id"] == (await bare_stage.app.get(answer.json()["job_id"])).user_id
    # From now on the page shows the job. On a busy machine the counts of an hour are read every 30 seconds.
    await expect(page.get_by_test_id("empty")).to_have_count(0, timeout=4 * PATIENCE_MS)


async def test_an_app_without_services_shows_the_lines_that_declare_one(open_window: Open, tmp_path: Path) -> None:
    app = Fairlead(Config(), database_url=f"sqlite:///{tmp_path}/bare.db")
    async with app.running():
        stage = Stage(app, Gate(), 0)
        await stage.start()
        try:
            window = await open_window(stage)
            page = await window.go()
            await settled(page)
            await expect(page.get_by_test_id("empty")).to_contain_text("[services.paint]")
            await expect(page.get_by_test_id("empty")).to_contain_text("@app.service")
            await window.context.close()
        finally:
            await stage.stop()
