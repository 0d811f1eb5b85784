"""Actions on many jobs at once: batches, and dead letters, which a dry run counts first."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.gateway_site import Stage
from tests.browser.pages import ask, confirm, dialog_of, settled, unfold

# ---------------------------------------------------------------- batches


async def batch_of(stage: Stage, feature: str, size: int = 3) -> str:
    items = [{"custom_id": f"q{n}", "feature_name": feature} for n in range(size)]
    return (await stage.app.submit_batch(items, user_id="ada", name="spring survey")).id


async def counts(stage: Stage, batch: str) -> dict[str, int]:
    found = (await stage.app.get_batch(batch)).counts
    return {status: count for status, count in found.items() if count}


async def test_cancelling_a_batch(open_window: Open, bare_stage: Stage) -> None:
    batch = await batch_of(bare_stage, "gated")
    page = await (await open_window(bare_stage)).go(f"/batches/{batch}")
    await settled(page)
    await ask(page, "Cancel", says="spring survey")
    await confirm(page)
    assert await counts(bare_stage, batch) == {"CANCELLED": 3}
    assert await bare_stage.actions() == [("batch.cancel", batch)]


async def test_retrying_the_failed_items_of_a_batch(open_window: Open, bare_stage: Stage) -> None:
    batch = await batch_of(bare_stage, "flaky")
    await bare_stage.app.wait_batch(batch, timeout=15)
    page = await (await open_window(bare_stage)).go(f"/batches/{batch}")
    await ask(page, "Retry failed (3)", says="3 items")
    bare_stage.gate.opened.set()
    await confirm(page)
    await bare_stage.app.wait_batch(batch, timeout=15)
    assert await counts(bare_stage, batch) == {"COMPLETED": 3}
    assert await bare_stage.actions() == [("batch.retry", batch)]


async def test_a_batch_of_permanent_failures_is_retried(open_window: Open, bare_stage: Stage) -> None:
    batch = await batch_of(bare_stage, "broken")
    await bare_stage.app.wait_batch(batch, timeout=15)
    page = await (await open_window(bare_stage)).go(f"/batches/{batch}")
    await ask(page, "Retry failed (3)", says="permanent error")
    await confirm(page)
    await expect(page.get_by_test_id("toasts")).to_contain_text("3 items are queued again")


async def test_an_item_s_job_links_to_its_batch(open_window: Open, bare_stage: Stage) -> None:
    batch = await batch_of(bare_stage, "echo")
    await bare_stage.app.wait_batch(batch, timeout=15)
    job = (await bare_stage.app.batch_items(batch)).data[1].job_id
    page = await (await open_window(bare_stage)).go(f"/jobs/{job}")
    await expect(page.locator(f"main a[href='#/batches/{batch}']")).to_have_text("spring survey")
    await expect(page.get_by_label("Facts")).to_contain_text("q1")


async def test_retrying_one_item_of_a_batch(open_window: Open, bare_stage: Stage) -> None:
    batch = await batch_of(bare_stage, "flaky")
    await bare_stage.app.wait_batch(batch, timeout=15)
    bare_stage.gate.opened.set()
    page = await (await open_window(bare_stage)).go(f"/batches/{batch}")
    await ask(page, "Retry item q1", says="q1")
    await confirm(page)
    await bare_stage.app.wait_batch(batch, timeout=15)
    assert await counts(bare_stage, batch) == {"COMPLETED": 1, "FAILED": 2}
    assert [action for action, _ in await bare_stage.actions()] == ["job.retry"]


# ---------------------------------------------------------------- dead letters


async def dead_letters(stage: Stage) -> list[str]:
    """Two with one error, one with another."""
    jobs = [await stage.submit("broken", "eve"), await stage.submit("broken", "bob"), await stage.submit("flaky")]
    await stage.ended(*jobs)
    return jobs


async def dead(stage: Stage) -> set[str]:
    return {job.job_id for job in (await stage.app.dead()).data}


async def dry_run_counts(page: Page, words: str) -> None:
    await expect(dialog_of(page).get_by_test_id("dry-run")).to_have_text(words)


async def test_requeueing_a_group_of_dead_letters(open_window: Open, bare_stage: Stage) -> None:
    first, second, other = await dead_letters(bare_stage)
    page = await (await open_window(bare_stage)).go("/dead")
    group = page.get_by_test_id("dead-group").filter(has_text="not yet")
    bare_stage.gate.opened.set()
    await ask(page, group.get_by_role("button", name="Retry").first, says="Retry")
    await dry_run_counts(page, "1 job")
    assert await dead(bare_stage) == {first, second, other}
    await confirm(page)
    await bare_stage.reaches(other, "COMPLETED")
    assert await dead(bare_stage) == {first, second}
    assert [action for action, _ in await bare_stage.actions()] == ["dead.requeue"]


async def test_purging_a_group_of_dead_letters(open_window: Open, bare_stage: Stage) -> None:
    *_, other = await dead_letters(bare_stage)
    page = await (await open_window(bare_stage)).go("/dead")
    group = page.get_by_test_id("dead-group").filter(has_text="never work")
    await ask(page, group.get_by_role("button", name="Purge").first, says="Purge")
    await dry_run_counts(page, "2 jobs")
    assert len(await dead(bare_stage)) == 3
    await confirm(page)
    assert await dead(bare_stage) == {other}
    await expect(page.get_by_test_id("dead-group")).to_have_count(1)


async def test_purging_one_dead_letter(open_window: Open, bare_stage: Stage) -> None:
    first, second, other = await dead_letters(bare_stage)
    page = await (await open_window(bare_stage)).go("/dead")
    await unfold(page, "Examples", all=True)
    await ask(page, f"Purge job {first}", says=first)
    await dry_run_counts(page, "1 job")
    await confirm(page)
    assert await dead(bare_stage) == {second, other}


async def test_requeueing_one_dead_letter(open_window: Open, bare_stage: Stage) -> None:
    first, second, other = await dead_letters(bare_stage)
    bare_stage.gate.opened.set()
    page = await (await open_window(bare_stage)).go("/dead")
    await unfold(page, "Examples", all=True)
    await ask(page, f"Retry job {other}", says=other)
    await dry_run_counts(page, "1 job")
    await confirm(page)
    await bare_stage.reaches(other, "COMPLETED")
    assert await dead(bare_stage) == {first, second}


async def test_requeueing_all_dead_letters(open_window: Open, bare_stage: Stage) -> None:
    *_, other = await dead_letters(bare_stage)
    bare_stage.gate.opened.set()
    page = await (await open_window(bare_stage)).go("/dead")
    await ask(page, "Retry all", says="all")
    await dry_run_counts(page, "3 jobs")
    await confirm(page)
    await bare_stage.reaches(other, "COMPLETED")
    assert [action for action, _ in await bare_stage.actions()] == ["dead.requeue"]


async def test_purging_all_dead_letters(open_window: Open, bare_stage: Stage) -> None:
    await dead_letters(bare_stage)
    page = await (await open_window(bare_stage)).go("/dead")
    await ask(page, "Purge all", says="all")
    await dry_run_counts(page, "3 jobs")
    await confirm(page)
    assert await dead(bare_stage) == set()
    await expect(page.get_by_test_id("empty")).to_be_visible()


@pytest.mark.parametrize("action", ["Retry all", "Purge all"])
async def test_jobs_that_fail_while_the_dialog_is_open_are_not_affected(
    open_window: Open, bare_stage: Stage, action: str
) -> None:
    await dead_letters(bare_stage)
    page = await (await open_window(bare_stage)).go("/dead")
    await ask(page, action, says="all dead letters")
    await dry_run_counts(page, "3 jobs")
    later = await bare_stage.submit("broken", "eve")
    await bare_stage.ended(later)
    await confirm(page)
    await expect(page.get_by_test_id("toasts")).to_contain_text("3 jobs")
    assert later in await dead(bare_stage)
