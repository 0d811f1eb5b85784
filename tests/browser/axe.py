"""Runs axe, a checker of accessibility rules, on a page of the dashboard."""

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


async def serious_problems(page: Page, *rules: str) -> list[str]:
    """One line per problem with these rules, or with all: the rule, its description, and its first elements."""
    # Evaluated by the driver and not loaded by the page, whose policy allows only the dashboard's scripts.
    if not await page.evaluate("() => Boolean(window.axe)"):
        await page.evaluate(_source())
    found: list[dict[str, Any]] = await page.evaluate(
        "async (only) => (await axe.run(document, {resultTypes: ['violations'], ...only})).violations",
        {"runOnly": rules} if rules else {},
    )
    return [_described(problem) for problem in found if problem["impact"] in SERIOUS]


def _described(problem: dict[str, Any]) -> str:
    where = "; ".join(f"{node['target']} {node['failureSummary']}" for node in problem["nodes"][:3])
    return f"{problem['id']} ({problem['impact']}): {problem['help']}: {where}"
