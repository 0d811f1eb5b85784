"""Budgets on the page Usage and beside a user's jobs, and how an operator sets one."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.conftest import Open, Raise
from tests.browser.pages import ask, confirm


async def test_a_budget_is_shown_and_set(open_window: Open, raise_stage: Raise) -> None:
    stage = await raise_stage(sections={"budgets": {"fast": {"seconds": 1e-6, "per": "month", "each_user": True}}})
    await stage.ended(await stage.submit("echo", "ada"))
    job = await stage.submit("echo", "ada")
    await stage.reaches(job, "RETRYING")
    page = await (await open_window(stage)).go("/usage")
    budgets = page.get_by_test_id("budgets")
    for words in ("fast", "ada", "spent", "hold"):
        await expect(budgets).to_contain_text(words)
    question = await ask(page, "Set the budget fast", says="ada")
    await question.get_by_label("Amount").fill("60")
    await confirm(page)
    await stage.reaches(job, "COMPLETED")
    await expect(budgets).to_contain_text("of 60 seconds per month")
    await page.goto(f"{stage.url}/#/jobs?user_id=ada")
    await expect(page.get_by_test_id("budgets")).to_contain_text("fast")
    assert await stage.actions() == [("budget.set", "fast")]
