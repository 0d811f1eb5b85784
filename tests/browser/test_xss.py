"""Sixty texts that try to run as scripts, in every field that a page shows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.browser import gateway_site as stages
from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import settled
from tests.browser.sample_data import Poison, poison
from tests.browser.sign_in import sign_in
from tests.browser.strict_window import Window
from tests.browser.xss import CORPUS

Poisoned = tuple[Stage, Poison]

# Trigger what waits for the user: open every collapsed part, hover and focus every element.
TOUCH = """async () => {
  const drawn = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  document.querySelectorAll('details').forEach((each) => { each.open = true; });
  await drawn();
  document.querySelectorAll('main *').forEach((each) => {
    for (const kind of ['mouseover', 'mouseenter', 'focus']) each.dispatchEvent(new Event(kind, {bubbles: true}));
  });
  await drawn();
}"""


# Visit each of these addresses, long enough for it to be drawn.
VISIT = """async (routes) => {
  for (const route of routes) {
    location.hash = route;
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }
  return window.__pwned ?? null;
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def poisoned(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Poisoned]:
    folder = tmp_path_factory.mktemp("poisoned")
    async with stages.raised({"database_url": f"sqlite:///{folder}/fairlead.db"}) as raised:
        yield raised, await poison(raised)


def test_there_are_sixty_and_all_differ() -> None:
    assert len(CORPUS) == len(set(CORPUS)) == 60


async def unharmed(window: Window, page: Page, where: str) -> None:
    await settled(page)
    await page.evaluate(TOUCH)
    assert await page.evaluate("() => window.__pwned") is None, where
    assert window.unexpected == [], where


async def test_no_text_runs_on_any_page(open_window: Open, poisoned: Poisoned) -> None:
    stage, ids = poisoned
    window = await open_window(stage)
    page = await sign_in(window, ids.first_key)
    await expect(page.get_by_role("banner")).to_contain_text(CORPUS[0])
    pages = ["/", "/jobs", "/users", "/batches", "/dead", "/workers", "/audit", "/services/confiding"]
    details = [f"/jobs/{ids.running}", f"/jobs/{ids.completed[0]}", f"/batches/{ids.batch}"]
    for route in (*pages, *details):
        await window.go(route)
        await unharmed(window, page, route)


async def test_input_result_and_metadata_are_shown_and_do_not_run(open_window: Open, poisoned: Poisoned) -> None:
    stage, ids = poisoned
    window = await open_window(stage)
    page = await sign_in(window, ids.first_key, f"/jobs/{ids.everything}")
    await unharmed(window, page, "the data of a job")
    for title in ("Input", "Result", "Metadata"):
        shown = page.get_by_label(title, exact=True)
        for text in CORPUS:
            await expect(shown).to_contain_text(json.dumps(text, ensure_ascii=False))


async def test_no_text_runs_on_the_page_of_a_job(open_window: Open, poisoned: Poisoned) -> None:
    stage, ids = poisoned
    window = await open_window(stage)
    page = await sign_in(window, ids.first_key)
    for text, job in zip(CORPUS, ids.failed, strict=True):
        await window.go(f"/jobs/{job}")
        # It is shown exactly as written.
        await expect(page.get_by_role("main")).to_contain_text(text)
        await unharmed(window, page, text)


async def test_no_text_in_the_address_runs(open_window: Open, poisoned: Poisoned) -> None:
    stage, ids = poisoned
    window = await open_window(stage)
    page = await sign_in(window, ids.first_key)
    for text in CORPUS:
        harmed = await page.evaluate(VISIT, [f"/jobs?user_id={text}", f"/services/{text}", f"/{text}"])
        assert harmed is None, text
        assert window.unexpected == [], text
