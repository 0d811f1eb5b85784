"""The page of the API at /docs: every route, requests with a key, nothing from other hosts."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser import axe
from tests.browser.conftest import Open, Raise
from tests.browser.gateway_site import Stage
from tests.browser.sign_in import key_field
from tests.browser.strict_window import Window

KEY = "an admin key of enough length"


async def opened(window: Window) -> Page:
    await window.page.goto(f"{window.url}/docs")
    return window.page


def route(page: Page, title: str) -> Locator:
    """The form of a route, by its method and path."""
    return page.locator("details").filter(has=page.locator("summary", has_text=re.compile(rf"^{title}\s")))


async def unfolded(page: Page, title: str) -> Locator:
    form = route(page, title)
    await form.locator("summary").click()
    return form


async def test_every_documented_route_is_on_the_page(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    page = await opened(window)
    await expect(page.get_by_role("heading", level=2).first).to_be_visible()
    document = await (await window.context.request.get(f"{window.url}/openapi.json")).json()
    expected = {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}
    shown = {" ".join(text.split()[:2]) for text in await page.locator("summary").all_inner_texts()}
    assert shown == expected


async def test_a_job_is_submitted_and_read(open_window: Open, bare_stage: Stage) -> None:
    page = await opened(await open_window(bare_stage))
    form = await unfolded(page, r"POST\s+/api/v1/jobs")
    body = {"user_id": "ada", "feature_name": "echo", "input_data": {"text": "<b>it's</b>"}}
    assert "feature_name" in json.loads(await form.get_by_label("Body", exact=True).input_value())
    await form.get_by_label("Body", exact=True).fill(json.dumps(body))
    await form.get_by_role("button", name="Send").click()
    await expect(form.get_by_role("status")).to_contain_text("202")
    job_id = json.loads(await form.get_by_label("Response", exact=True).inner_text())["job_id"]
    assert (await bare_stage.app.get(job_id)).input_data == body["input_data"]

    read = await unfolded(page, r"GET\s+/api/v1/jobs/\{job_id\}")
    await read.get_by_label("job_id").fill(job_id)
    await read.get_by_role("button", name="Send").click()
    await expect(read.get_by_label("Response", exact=True)).to_contain_text("<b>it's</b>")
    assert f"'{bare_stage.url}/api/v1/jobs/{job_id}'" in await read.get_by_label("Command", exact=True).inner_text()


async def test_requests_carry_the_key_and_the_command_does_not(open_window: Open, raise_stage: Raise) -> None:
    window = await open_window(await raise_stage(admin_key=KEY))
    window.expect(r"401 \(Unauthorized\).*/openapi.json")
    page = await opened(window)
    await expect(page.get_by_role("status")).to_contain_text("Enter a key")
    await key_field(page).fill(KEY)
    await page.get_by_role("button", name="Show the routes").click()
    form = await unfolded(page, r"GET\s+/queue/status")
    await form.get_by_role("button", name="Send").click()
    await expect(form.get_by_role("status")).to_contain_text("200")
    command = await form.get_by_label("Command", exact=True).inner_text()
    assert KEY not in command
    assert '-H "Authorization: Bearer $FAIRLEAD_API_KEY"' in command


async def test_streams_are_left_to_the_command_line(open_window: Open, bare_stage: Stage) -> None:
    page = await opened(await open_window(bare_stage))
    form = await unfolded(page, r"GET\s+/api/v1/jobs/\{job_id\}/events")
    await expect(form.get_by_label("Command", exact=True)).to_be_visible()
    await expect(form.get_by_role("button")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious(open_window: Open, bare_stage: Stage, scheme: str) -> None:
    page = await opened(await open_window(bare_stage, color_scheme=scheme))
    form = await unfolded(page, r"POST\s+/api/v1/jobs")
    await expect(form.get_by_role("button", name="Send")).to_be_visible()
    assert await axe.serious_problems(page) == []
    await page.set_viewport_size({"width": 360, "height": 740})
    assert await page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
