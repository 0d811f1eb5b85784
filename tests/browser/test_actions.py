"""Every action on jobs and services: confirmed first, then done, and visible in the database and in the audit."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from fairlead.errors import NotFound
from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import ask, confirm, dialog_of, settled

# ---------------------------------------------------------------- jobs


async def test_cancelling_a_job(open_window: Open, bare_stage: Stage) -> None:
    await bare_stage.running(await bare_stage.submit("gated"))
    job = await bare_stage.submit("gated", "bob")
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await ask(page, "Cancel", says=job)
    await confirm(page)
    assert (await bare_stage.app.get(job)).status == "CANCELLED"
    await expect(page.get_by_test_id("status").first).to_have_text("cancelled")
    assert await bare_stage.actions() == [("job.cancel", job)]


async def test_retrying_a_job(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("flaky")
    await bare_stage.ended(job)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await ask(page, "Retry", says="flaky")
    bare_stage.gate.opened.set()
    await confirm(page)
    await bare_stage.reaches(job, "COMPLETED")
    await expect(page.get_by_test_id("status").first).to_have_text("completed")
    assert await bare_stage.actions() == [("job.retry", job)]


async def test_retrying_after_a_permanent_error_warns_and_works(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("broken")
    await bare_stage.ended(job)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await expect(page.get_by_test_id("error")).to_contain_text("never work")
    await ask(page, "Retry", says="permanent")
    await confirm(page)
    assert await bare_stage.actions() == [("job.retry", job)]


async def test_a_failed_job_shows_its_traceback(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("flaky")
    await bare_stage.ended(job)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await expect(page.get_by_test_id("traceback")).to_contain_text("RuntimeError: not yet")


async def test_a_retry_may_begin_at_the_first_step(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("echo_then_break")
    await bare_stage.ended(job)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    question = await ask(page, "Retry", says="steps 2 to 3")
    await question.get_by_label("Begin at").select_option("start")
    await expect(question).to_contain_text("steps 1 to 3")
    await confirm(page)
    await bare_stage.ended(job)
    assert len((await bare_stage.app.get(job)).history or []) == 1


async def test_a_question_does_not_survive_the_page_that_asked_it(open_window: Open, bare_stage: Stage) -> None:
    window = await open_window(bare_stage)
    page = await window.go("/jobs")
    await expect(page.locator("main h1")).to_have_text("Jobs")
    page = await window.go("/services/echo")
    await expect(page.locator("main h1")).to_contain_text("echo")
    await ask(page, "Pause", says="echo")
    await page.go_back()
    await expect(page.locator("main h1")).to_have_text("Jobs")
    await expect(dialog_of(page)).to_have_count(0)
    assert await bare_stage.actions() == []


async def test_rerunning_a_step(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("echo_then_shout")
    await bare_stage.ended(job)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    question = await ask(page, "Run again: step 1", says="echo")
    await expect(question).to_contain_text("No other step runs")
    await confirm(page)
    await bare_stage.reaches(job, "COMPLETED")
    assert len((await bare_stage.app.get(job)).history) == 1
    assert await bare_stage.actions() == [("job.retry_step", job)]


async def test_changing_the_priority_of_a_job(open_window: Open, bare_stage: Stage) -> None:
    await bare_stage.running(await bare_stage.submit("gated"))
    job = await bare_stage.submit("gated", "bob", priority="low")
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    question = await ask(page, "Change priority", says=job)
    await question.get_by_label("Priority").select_option("high")
    await confirm(page)
    assert (await bare_stage.app.get(job)).priority == "high"
    assert await bare_stage.actions() == [("job.priority", job)]


async def test_removing_a_job(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("echo")
    await bare_stage.ended(job)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await ask(page, "Delete", says=job)
    await confirm(page)
    with pytest.raises(NotFound):
        await bare_stage.app.get(job)
    assert await bare_stage.actions() == [("job.delete", job)]


# ---------------------------------------------------------------- services


async def test_pausing_and_unpausing_a_service(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go("/services/echo")
    await ask(page, "Pause", says="echo")
    await confirm(page)
    await expect(page.get_by_role("main")).to_contain_text("paused")
    job = await bare_stage.submit("echo")
    await ask(page, "Unpause", says="echo")
    await confirm(page)
    await bare_stage.ended(job)
    assert await bare_stage.actions() == [("service.resume", "echo"), ("service.pause", "echo")]


async def test_changing_a_limit_and_lifting_the_change(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go("/services/gated")
    question = await ask(page, "Change limit", says="gated")
    await question.get_by_label("Concurrent calls").fill("3")
    await confirm(page)
    jobs = [await bare_stage.submit("gated") for _ in range(3)]
    for job in jobs:
        await bare_stage.running(job)
    await expect(page.get_by_role("main")).to_contain_text("limit changed")
    await ask(page, "Remove override", says="gated")
    await confirm(page)
    await expect(page.get_by_role("main")).not_to_contain_text("limit changed")
    assert await bare_stage.actions() == [("service.lift_limit", "gated"), ("service.limit", "gated")]


async def test_rebuilding_a_queue(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go("/services/echo")
    await ask(page, "Rebuild queue", says="echo")
    await confirm(page)
    assert await bare_stage.actions() == [("service.rebuild", "echo")]
    await bare_stage.ended(await bare_stage.submit("echo"))


# ---------------------------------------------------------------- workers


async def test_draining_and_resuming_a_worker(open_window: Open, bare_stage: Stage) -> None:
    [worker] = await bare_stage.app.processes()
    page = await (await open_window(bare_stage)).go("/workers")
    await ask(page, f"Drain {worker.name}", says=worker.name)
    await confirm(page)
    await expect(page.get_by_role("main")).to_contain_text("draining")
    await ask(page, f"Claim again: {worker.name}", says=worker.name)
    await confirm(page)
    assert await bare_stage.actions() == [("worker.undrain", worker.name), ("worker.drain", worker.name)]
    await bare_stage.ended(await bare_stage.submit("echo"))


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("way_out", ["Keep as is", "Escape"])
async def test_a_dialog_that_is_closed_changes_nothing(open_window: Open, bare_stage: Stage, way_out: str) -> None:
    page = await (await open_window(bare_stage)).go("/services/echo")
    question = await ask(page, "Pause", says="echo")
    if way_out == "Escape":
        await page.keyboard.press("Escape")
    else:
        await question.get_by_role("button", name=way_out).click()
    await expect(dialog_of(page)).to_have_count(0)
    # The focus returns to the button that opened the dialog.
    await expect(page.get_by_role("button", name="Pause", exact=True)).to_be_focused()
    assert await bare_stage.actions() == []


async def test_a_refused_action_is_explained_in_the_dialog(open_window: Open, bare_stage: Stage) -> None:
    """Another operator was faster."""
    await bare_stage.running(await bare_stage.submit("gated"))
    job = await bare_stage.submit("gated", "bob")
    window = await open_window(bare_stage)
    window.expect("409")
    page = await window.go(f"/jobs/{job}")
    await settled(page)
    await ask(page, "Cancel", says=job)
    await bare_stage.app.cancel(job)
    await dialog_of(page).get_by_test_id("confirm").click()
    await expect(dialog_of(page).get_by_role("alert")).to_contain_text("CANCELLED")
