"""Every action on jobs and services: asked about first, then done, and seen in the truth and in the audit."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from fairlead.errors import NotFound
from tests.browser.conftest import Open
from tests.browser.pages import ask, confirm, dialog_of, settled
from tests.browser.stage import Stage

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


async def test_resuming_a_job(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("flaky")
    await bare_stage.ended(job)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await ask(page, "Resume", says="flaky")
    bare_stage.gate.opened.set()
    await confirm(page)
    await bare_stage.reaches(job, "COMPLETED")
    await expect(page.get_by_test_id("status").first).to_have_text("completed")
    assert await bare_stage.actions() == [("job.resume", job)]


async def test_running_a_step_again(open_window: Open, bare_stage: Stage) -> None:
    job = await bare_stage.submit("echo_then_shout")
    await bare_stage.ended(job)
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await ask(page, "Run again step 1", says="echo")
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
    await ask(page, "Remove", says=job)
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
    await question.get_by_label("Calls at once").fill("3")
    await confirm(page)
    jobs = [await bare_stage.submit("gated") for _ in range(3)]
    for job in jobs:
        await bare_stage.running(job)
    await expect(page.get_by_role("main")).to_contain_text("limit changed")
    await ask(page, "Lift the change", says="gated")
    await confirm(page)
    await expect(page.get_by_role("main")).not_to_contain_text("limit changed")
    assert await bare_stage.actions() == [("service.lift_limit", "gated"), ("service.limit", "gated")]


async def test_rebuilding_a_line(open_window: Open, bare_stage: Stage) -> None:
    page = await (await open_window(bare_stage)).go("/services/echo")
    await ask(page, "Rebuild line", says="echo")
    await confirm(page)
    assert await bare_stage.actions() == [("service.rebuild", "echo")]
    await bare_stage.ended(await bare_stage.submit("echo"))


# ---------------------------------------------------------------- workers


async def test_draining_a_worker_and_letting_it_claim_again(open_window: Open, bare_stage: Stage) -> None:
    [worker] = await bare_stage.app.processes()
    page = await (await open_window(bare_stage)).go("/workers")
    await ask(page, f"Drain {worker.name}", says=worker.name)
    await confirm(page)
    await expect(page.get_by_role("main")).to_contain_text("draining")
    await ask(page, f"Claim again: {worker.name}", says=worker.name)
    await confirm(page)
    assert await bare_stage.actions() == [("worker.undrain", worker.name), ("worker.drain", worker.name)]
    await bare_stage.ended(await bare_stage.submit("echo"))


# ---------------------------------------------------------------- and none of them by mistake


@pytest.mark.parametrize("way_out", ["Leave it", "Escape"])
async def test_a_question_that_is_left_changes_nothing(open_window: Open, bare_stage: Stage, way_out: str) -> None:
    page = await (await open_window(bare_stage)).go("/services/echo")
    question = await ask(page, "Pause", says="echo")
    if way_out == "Escape":
        await page.keyboard.press("Escape")
    else:
        await question.get_by_role("button", name=way_out).click()
    await expect(dialog_of(page)).to_have_count(0)
    # The one who asked goes on where the question was.
    await expect(page.get_by_role("button", name="Pause", exact=True)).to_be_focused()
    assert await bare_stage.actions() == []


async def test_what_is_refused_is_said_in_the_question(open_window: Open, bare_stage: Stage) -> None:
    """Somebody else was quicker."""
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
