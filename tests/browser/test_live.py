"""Live updates, without a reload."""

from __future__ import annotations

from playwright.async_api import Page, expect

from fairlead.domain.model_stats import Generation
from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import job_link, settled, unfold


async def marked(page: Page) -> None:
    await settled(page)
    await page.evaluate("() => { window.__before = true; }")


async def not_reloaded(page: Page) -> None:
    assert await page.evaluate("() => window.__before"), "the page was reloaded"


async def test_the_overview_follows_slots_and_queues(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go()
    await marked(page)
    gated = page.get_by_test_id("service-gated")
    await expect(gated).to_contain_text("0 of 1")
    job = await bare_stage.submit("gated", "ada")
    await expect(gated).to_contain_text("1 of 1")
    await expect(gated.locator(f"a[href='#/jobs/{job}']")).to_contain_text("ada")
    await bare_stage.submit("gated", "bob")
    await expect(gated.get_by_role("img", name="1 medium")).to_be_visible()
    bare_stage.gate.opened.set()
    await bare_stage.ended(job)
    await expect(gated).to_contain_text("0 of 1")
    await expect(gated.get_by_role("img", name="no waiting jobs")).to_be_visible()
    await not_reloaded(page)


async def test_a_service_shows_the_next_jobs(open_window: Open, bare_stage: Stage) -> None:
    await bare_stage.running(await bare_stage.submit("gated", "ada"))
    later = await bare_stage.submit("gated", "bob", priority="low")
    page = await (await open_window(bare_stage)).go("/services/gated")
    await marked(page)
    await expect(job_link(page, later)).to_be_visible()
    sooner = await bare_stage.submit("gated", "cyn", priority="high")
    await expect(job_link(page, sooner)).to_be_visible()
    rows = page.get_by_role("table").first.get_by_role("row")
    await expect(rows.nth(1)).to_contain_text("cyn")
    await expect(rows.nth(2)).to_contain_text("bob")
    await not_reloaded(page)


async def test_a_job_is_followed_from_its_queue_position_to_its_result(open_window: Open, bare_stage: Stage) -> None:
    await bare_stage.running(await bare_stage.submit("gated", "ada"))
    job = await bare_stage.submit("gated_then_whisper", "bob")
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await marked(page)
    await expect(page.get_by_test_id("position")).to_have_text("1")
    await expect(page.get_by_test_id("why")).to_contain_text("gated is full")
    bare_stage.gate.opened.set()
    await expect(page.get_by_test_id("status").first).to_have_text("completed")
    await expect(page.get_by_test_id("why")).to_have_count(0)
    await unfold(page, "Result")
    await expect(page.get_by_role("main")).to_contain_text("step_0_gated")
    await not_reloaded(page)


async def test_progress_is_shown_while_a_job_runs(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("confiding", input_data={"text": "half of the picture"})
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await expect(page.get_by_role("progressbar")).to_have_attribute("value", "0.5")
    await expect(page.get_by_role("main")).to_contain_text("half of the picture")


async def test_new_jobs_appear_on_top_and_are_updated_in_place(open_window: Open, bare_stage: Stage) -> None:
    await bare_stage.ended(await bare_stage.submit("echo"))
    page = await (await open_window(bare_stage)).go("/jobs")
    await marked(page)
    job = await bare_stage.submit("gated", "bob")
    first = page.get_by_role("row").nth(1)
    await expect(first).to_contain_text("bob")
    await expect(first).to_contain_text("running")
    bare_stage.gate.opened.set()
    await expect(first).to_contain_text("completed")
    await expect(job_link(page, job)).to_be_visible()
    await not_reloaded(page)


async def test_a_batch_is_followed_to_its_end(open_window: Open, bare_stage: Stage) -> None:
    batch = await bare_stage.app.submit_batch([{"feature_name": "gated"}] * 3, user_id="ada", name="spring survey")
    page = await (await open_window(bare_stage)).go(f"/batches/{batch.id}")
    await marked(page)
    bare_stage.gate.opened.set()
    await expect(page.get_by_role("img", name="3 completed")).to_be_visible()
    await expect(page.get_by_role("main")).to_contain_text("100 %")
    await not_reloaded(page)


async def test_the_audit_shows_new_actions(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go("/audit")
    await marked(page)
    await bare_stage.app.pause("echo", who="the night shift")
    await expect(page.get_by_role("main")).to_contain_text("the night shift")
    await not_reloaded(page)


async def test_two_windows_see_the_same(open_window: Open, bare_stage: Stage) -> None:
    one, other = [await (await open_window(bare_stage)).go("/services/echo") for _ in range(2)]
    await settled(one)
    await settled(other)
    await bare_stage.app.pause("echo")
    for page in (one, other):
        await expect(page.get_by_role("main")).to_contain_text("paused")


async def test_the_output_of_a_running_job_is_shown_as_it_is_made(open_window: Open, bare_stage: Stage) -> None:
    """A restart discards the output of the failed attempt."""
    text = "<b>once</b> upon\na time"
    job = await bare_stage.submit("confiding", input_data={"text": text, "failures": 1})
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await marked(page)
    output = page.get_by_test_id("output")
    await expect(output).to_have_text(text)
    bare_stage.gate.opened.set()
    await bare_stage.ended(job)
    await expect(output).to_have_text(f"{text} and the rest")
    await not_reloaded(page)


async def test_a_streamed_request_is_shown_as_text_and_its_model_with_its_figures(
    open_window: Open, bare_stage: Stage
) -> None:
    events = 'data: {"choices":[{"delta":{"content":"<i>Hello</i>"}}]}\n\ndata: {"choices":[]}\n\n'
    request = {"path": "chat/completions", "content_type": "application/json", "stream": True, "text": events}
    job = await bare_stage.submit("confiding", input_data=request)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await expect(page.get_by_test_id("output")).to_have_text("<i>Hello</i>")
    bare_stage.gate.opened.set()
    await bare_stage.ended(job)
    bare_stage.app._runtime.writer.counters.generated("echo", Generation("llama-3", 9, 600, 0.25, 10.0))
    for path in ("/", "/services/echo"):
        page = await (await open_window(bare_stage)).go(path)
        models = page.get_by_test_id("models")
        await expect(models).to_contain_text("llama-3")
        await expect(models).to_contain_text("60")
        await expect(models).to_contain_text("p95")
