"""Where there is nothing yet, a page says what would be there and how it gets there."""

from __future__ import annotations

import json
import shlex

import httpx2
import pytest
from playwright.async_api import expect

from tests.browser.conftest import Open
from tests.browser.pages import settled
from tests.browser.stage import Stage


@pytest.mark.parametrize("route", ["/", "/jobs", "/users", "/batches", "/dead", "/audit"])
async def test_an_empty_page_teaches(open_window: Open, bare_stage: Stage, route: str) -> None:
    page = await (await open_window(bare_stage)).go(route)
    await settled(page)
    await expect(page.get_by_test_id("empty")).to_be_visible()


async def test_the_request_that_is_shown_submits_a_job(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    shown = await page.get_by_test_id("empty").locator("pre").inner_text()
    program, _, url, _, header, _, body = shlex.split(shown.replace("\\\n", ""))
    assert program == "curl"
    name, _, value = header.partition(": ")
    async with httpx2.AsyncClient() as client:
        answer = await client.post(url, headers={name: value}, content=body)
    assert answer.status_code == 202, answer.text
    assert json.loads(body)["user_id"] == (await bare_stage.app.get(answer.json()["job_id"])).user_id
    # And the page has something better to show from now on.
    await expect(page.get_by_test_id("empty")).to_have_count(0)
