"""The pages of the dashboard: their routes, and when they are complete."""

from __future__ import annotations

import re
from dataclasses import asdict

from playwright.async_api import Locator, Page, expect

from tests.browser.sample_data import SampleData

# With placeholders for the ids of the sample data.
PAGES = {
    "overview": "/",
    "service": "/services/gated",
    "service with regions": "/services/gpu",
    "jobs": "/jobs",
    "running job": "/jobs/{running}",
    "waiting job": "/jobs/{waiting}",
    "retrying job": "/jobs/{retrying}",
    "failed job": "/jobs/{failed}",
    "finished job": "/jobs/{two_steps}",
    "users": "/users",
    "batches": "/batches",
    "batch": "/batches/{batch}",
    "dead letters": "/dead",
    "workers": "/workers",
    "schedules": "/schedules",
    "schedule": "/schedules/{schedule}",
    "webhooks": "/webhooks",
    "audit": "/audit",
    "usage": "/usage",
}

SECTIONS = [
    "Overview",
    "Jobs",
    "Users",
    "Batches",
    "Usage",
    "Dead letters",
    "Workers",
    "Schedules",
    "Webhooks",
    "Audit",
]
"""The sections in the order of the navigation."""


def route_of(page: str, sample: SampleData) -> str:
    return PAGES[page].format_map(asdict(sample))


async def settled(page: Page) -> None:
    """Wait until the page is live and shows its first state."""
    await expect(page.get_by_test_id("connection")).to_contain_text("Live")
    await expect(page.locator("main h1")).to_be_visible()
    await expect(page.locator("main .loading")).to_have_count(0)
    await expect(page.locator("main .card.trouble")).to_have_count(0)


def job_link(page: Page, job_id: str) -> Locator:
    return page.locator(f"main a[href='#/jobs/{job_id}']").first


async def unfold(page: Page, title: str, *, all: bool = False) -> None:
    """Open the collapsed parts with this title: the first, or all."""
    found = page.locator("main summary").filter(has_text=re.compile(f"^{title}"))
    await expect(found.first).to_be_visible()
    for each in await found.all() if all else [found.first]:
        await each.click()


def dialog_of(page: Page) -> Locator:
    return page.locator("dialog[open]")


async def ask(page: Page, button: str | Locator, *, says: str) -> Locator:
    """Press the button of an action. The dialog that opens must name the action and its target."""
    pressed = (
        page.get_by_role("main").get_by_role("button", name=button, exact=True) if isinstance(button, str) else button
    )
    await pressed.click()
    await expect(dialog_of(page)).to_contain_text(says)
    return dialog_of(page)


async def confirm(page: Page) -> None:
    """Confirm the open dialog. It closes when the action is done, and a message reports it."""
    await dialog_of(page).get_by_test_id("confirm").click()
    await expect(dialog_of(page)).to_have_count(0)
    await expect(page.get_by_test_id("toasts")).not_to_be_empty()
