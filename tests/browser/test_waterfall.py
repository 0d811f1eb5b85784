"""The waterfall of a job's calls."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.browser.conftest import Open, Raise


async def test_a_failed_call_is_followed_by_its_backoff(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage()
    job_id = await stage.submit("gpu")
    await stage.reaches(job_id, "RETRYING")
    window = await open_window(stage)
    page = await window.go(f"/jobs/{job_id}")
    tracks = page.get_by_test_id("waterfall").get_by_role("img")
    await expect(tracks).to_have_count(1)
    await expect(tracks).to_have_attribute("aria-label", re.compile(r"^waited .+, ran .+, backed off .+, CONNECTION$"))
    await expect(tracks.locator(".segment.backoff")).to_have_count(1)
