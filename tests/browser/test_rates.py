"""Rates on the pages of a service, of all services and of the users, and how an operator changes them."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect

from tests.browser.conftest import Open, Raise
from tests.browser.pages import ask, confirm

PLANS = {"plans": {"free": {"rate": {"requests": 5}}}, "groups": {"acme": {}, "red": {"parent": "acme"}}}


async def test_rates_are_shown_and_changed(open_window: Open, raise_stage: Raise) -> None:
    llm = {"limit": 4, "url": "http://127.0.0.1:9/", "pool": "shared", "cost_unit": "tokens"}
    stage = await raise_stage(pools={"shared": 4}, sections=PLANS, llm=llm)
    window = await open_window(stage)
    page = await window.go("/services/llm")
    await _change(page, "Change rate", "llm", calls="9", tokens="1200")
    await expect(page.get_by_label("Figures")).to_contain_text("of 9 calls, 1,200 tokens in 30 s")
    await ask(page, "Remove rate override", says="llm")
    await confirm(page)
    page = await window.go("/services/gpu")
    await _change(page, "Change rate of gpu in eu", "eu", calls="3")
    await expect(page.get_by_role("row", name="eu")).to_contain_text("3 calls in 30 s")
    page = await window.go("/")
    await _change(page, "Change rate of the pool shared", "shared", calls="7")
    await expect(page.get_by_test_id("pools")).to_contain_text("0 of 7 calls in 30 s")
    page = await window.go("/users")
    rates = page.get_by_test_id("member-rates")
    await expect(_row(rates, "free")).to_contain_text("5 calls in 1 min")
    await _change(page, "Change rate of the group acme/red", "acme/red", calls="2")
    await expect(_row(rates, "acme/red")).to_contain_text("2 calls in 30 s")
    await _change(page, "Change rate of the plan free", "free", calls="8")
    await ask(page, "Remove override of the rate of the plan free", says="free")
    await confirm(page)
    await expect(_row(rates, "free")).to_contain_text("5 calls in 1 min")
    assert await stage.actions() == [
        ("plan.lift_rate", "free"),
        ("plan.rate", "free"),
        ("group.rate", "acme/red"),
        ("pool.rate", "shared"),
        ("service.rate", "gpu"),
        ("service.lift_rate", "llm"),
        ("service.rate", "llm"),
    ]


def _row(table: Locator, name: str) -> Locator:
    return table.get_by_role("row").filter(has=table.page.get_by_role("rowheader", name=name, exact=True))


async def _change(page: Page, button: str, says: str, *, calls: str, tokens: str | None = None) -> None:
    question = await ask(page, button, says=says)
    await question.get_by_label("Calls").fill(calls)
    if tokens is not None:
        await question.get_by_label("Tokens").fill(tokens)
    await question.get_by_label("Window in seconds").fill("30")
    await confirm(page)
