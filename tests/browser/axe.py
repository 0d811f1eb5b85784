"""Axe, which knows the rules of accessible pages, on a page of ours."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from playwright.async_api import Page

SCRIPT = Path(__file__).parent / "vendor" / "axe.min.js"
SERIOUS = frozenset({"serious", "critical"})


@cache
def _source() -> str:
    return SCRIPT.read_text()


async def serious_problems(page: Page) -> list[str]:
    """One line for each: the rule, what it says, and the first elements that break it."""
    # Evaluated by the driver, not loaded by the page: its policy allows no script that is not the dashboard's.
    if not await page.evaluate("() => Boolean(window.axe)"):
        await page.evaluate(_source())
    found: list[dict[str, Any]] = await page.evaluate(
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
    )
    return [_told(problem) for problem in found if problem["impact"] in SERIOUS]


def _told(problem: dict[str, Any]) -> str:
    where = "; ".join(f"{node['target']} {node['failureSummary']}" for node in problem["nodes"][:3])
    return f"{problem['id']} ({problem['impact']}): {problem['help']}: {where}"
