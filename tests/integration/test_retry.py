"""`retry`: one verb for every failed job, on both engines, over HTTP and in the clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead import AsyncClient, Call, Config, Fairlead, JobStatus, Permanent, WrongState
from fairlead.domain import transitions
from fairlead.domain.retry import warning_of
from fairlead.gateway import models, models_batches
from tests.integration.gateway_site import Site, served

PATIENCE = 30.0
ADMIN = "fl_admin_0123456789abcdef0123456789abcdef"
MakeSite = Callable[..., Awaitable[Site]]


class Pipeline:
    """Two steps; those in `broken` fail permanently. `calls` counts them."""

    def __init__(self, engines: dict[str, str]) -> None:
        self.app = Fairlead(Config(), **engines)
        self.broken = {"judge"}
        self.calls: list[str] = []
        for name in ("ask", "judge"):
            self.app.service(name, limit=5)(self._handler(name))
        self.app.pipeline("survey", ["ask", "judge"])

    def _handler(self, name: str) -> Callable[[Call], Awaitable[str]]:
        async def handle(call: Call) -> str:
            self.calls.append(name)
            if name in self.broken:
                raise Permanent(f"{name} is broken")
            return f"{name} {self.calls.count(name)}"

        return handle


@pytest.mark.parametrize(
    ("from_start", "calls"), [(False, ["ask", "judge", "judge"]), (True, ["ask", "judge", "ask", "judge"])]
)
async def test_a_permanent_failure_is_retried_with_a_warning(
    engines: dict[str, str], from_start: bool, calls: list[str]
) -> None:
    pipeline = Pipeline(engines)
    async with pipeline.app.running() as app:
        job = await app.submit("survey", user_id="ada")
        failed = await app.wait(job.id, PATIENCE)
        assert (failed.status, failed.retryable) == (JobStatus.FAILED, False)
        pipeline.broken = set()
        retried = await job.retry(from_start=from_start)
        assert retried.warning is not None
        assert "PERMANENT" in retried.warning
        done = await app.wait(job.id, PATIENCE)
        assert (done.status, pipeline.calls) == (JobStatus.COMPLETED, calls)
        with pytest.raises(WrongState, match="COMPLETED"):
            await app.retry(job.id)


async def test_every_failed_item_of_a_batch_is_retried(engines: dict[str, str]) -> None:
    pipeline = Pipeline(engines)
    async with pipeline.app.running() as app:
        batch = await app.submit_batch([{"feature_name": "survey"}] * 3 + [{"feature_name": "ask"}], user_id="ada")
        assert (await batch.wait(PATIENCE)).counts[JobStatus.FAILED] == 3
        pipeline.broken = set()
        assert await batch.retry_failed() == 3
        assert (await batch.wait(PATIENCE)).counts[JobStatus.COMPLETED] == 4
        assert await app.retry_batch(batch.id) == 0


async def test_an_item_that_another_process_retries_is_not_retried_twice(
    engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(engines)
    async with pipeline.app.running() as app:
        batch = await app.submit_batch([{"feature_name": "judge"}] * 3, user_id="ada")
        await batch.wait(PATIENCE)
        first = (await app.batch_items(batch.id)).data[0].job_id
        writer, meanwhile = app._runtime.writer, [first]
        apply_each = writer.apply_each

        async def apply_after_another(*arguments: Any) -> Any:
            if meanwhile:
                job_id = meanwhile.pop()
                # Another process does not share the lock of this one.
                await app.jobs._commands.move(job_id, lambda job, now: transitions.requeue(job, now=now, waits={}))
                await app.wait(job_id, PATIENCE)
            return await apply_each(*arguments)

        monkeypatch.setattr(writer, "apply_each", apply_after_another)
        assert await batch.retry_failed() == 2
        await batch.wait(PATIENCE)
        assert len(pipeline.calls) == 6, "three calls, and one retry of each"


async def test_a_retried_item_has_fresh_attempts(engines: dict[str, str]) -> None:
    pipeline = Pipeline(engines)

    @pipeline.app.service("shaky", limit=1, retry="manual", max_attempts=2)
    async def shaky(call: Call) -> None:
        raise RuntimeError("not yet")

    async with pipeline.app.running() as app:
        batch = await app.submit_batch([{"feature_name": "shaky"}], user_id="ada")
        for _ in range(3):
            await batch.wait(PATIENCE)
            job = await app.get((await app.batch_items(batch.id)).data[0].job_id)
            assert (job.status, job.retryable) == (JobStatus.FAILED, True)
            await app.retry_item(batch.id, 0)


async def test_users_begin_a_bounded_number_of_rounds_and_operators_any(
    embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(embedded)
    monkeypatch.setattr("fairlead.domain.reruns.MOST_ROUNDS", 1)
    async with pipeline.app.running() as app:
        job = await app.submit("survey", user_id="ada")
        await app.wait(job.id, PATIENCE)
        await job.retry()
        await app.wait(job.id, PATIENCE)
        with pytest.raises(WrongState, match="submit a new one"):
            await job.retry()
        await app.retry(job.id, who="ann")


def test_only_a_permanent_error_has_a_warning() -> None:
    used_up = {"code": "HTTP_503", "message": "busy", "reason": "ATTEMPTS_USED_UP"}
    assert warning_of(used_up, False) is None
    assert warning_of({"code": "HTTP_503", "message": "busy"}, True) is None
    assert warning_of({"code": "HTTP_400", "message": "bad prompt"}, False)


# ---------------------------------------------------------------- over HTTP


@pytest.fixture
async def keyed(make_site: MakeSite) -> tuple[Site, dict[str, dict[str, str]]]:
    """A gateway where a user may have one waiting job, and the headers of an admin and two users."""
    site = await make_site(admin_key=ADMIN, max_waiting_per_user=1)
    keys = {"admin": ADMIN}
    for user in ("ada", "bob"):
        keys[user] = (await site.app.create_key("user", user_id=user)).text
    return site, {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}


async def failed_job(site: Site, service: str) -> str:
    job = await site.app.submit(service, user_id="ada")
    assert (await site.app.wait(job.id, PATIENCE)).status is JobStatus.FAILED
    return job.id


async def test_the_owner_and_an_admin_may_retry_and_the_cap_binds_the_owner(
    keyed: tuple[Site, dict[str, dict[str, str]]],
) -> None:
    site, headers = keyed
    jobs = [await failed_job(site, "broken") for _ in range(3)]
    await site.app.pause("broken")

    async def retry(caller: str, job_id: str) -> tuple[int, Any]:
        answer = await site.client.post(f"/api/v1/jobs/{job_id}/retry", headers=headers[caller])
        return answer.status_code, answer.json()

    assert (await retry("bob", jobs[0]))[0] == 404
    status, body = await retry("ada", jobs[0])
    assert (status, body["status"]) == (200, "PENDING")
    assert body["warning"]
    models.RetriedJob.model_validate(body)
    status, body = await retry("ada", jobs[1])
    assert (status, body["code"]) == (429, "too_many_waiting")
    assert [(await retry("admin", job_id))[0] for job_id in jobs] == [409, 200, 200]
    rows = (await site.app.audit(action="job.retry")).data
    assert [row.target for row in rows] == [jobs[2], jobs[1]]
    assert rows[0].details["from_start"] is False


async def test_the_body_says_where_the_retry_begins(site: Site) -> None:
    job_id = await site.submit(feature_name="broken")
    await site.app.wait(job_id, PATIENCE)
    url = f"/api/v1/jobs/{job_id}/retry"
    for wrong in ({"from": "end"}, {"from": 1}, {"step": 0}):
        assert (await site.client.post(url, json=wrong)).status_code == 422
    assert (await site.client.post(url, json={"from": "start"})).status_code == 200


async def test_a_batch_s_route_says_how_many(keyed: tuple[Site, dict[str, dict[str, str]]]) -> None:
    site, headers = keyed
    batch = await site.app.submit_batch([{"feature_name": "broken"}], user_id="ada")
    await batch.wait(PATIENCE)
    url = f"/api/v1/batches/{batch.id}/retry"
    assert (await site.client.post(url, headers=headers["bob"])).status_code == 404
    answers = [(await site.client.post(url, headers=headers["ada"])).json()]
    await batch.wait(PATIENCE)
    await site.app.pause("broken")
    # The first of these leaves the item waiting, so the second finds nothing to retry.
    answers += [(await site.client.post(url, headers=headers["admin"])).json() for _ in range(2)]
    models_batches.BatchRetried.model_validate(answers[0])
    assert [answer["retried"] for answer in answers] == [1, 1, 0]


async def test_an_item_is_retried_by_the_rules_of_its_job(keyed: tuple[Site, dict[str, dict[str, str]]]) -> None:
    site, headers = keyed
    batch = await site.app.submit_batch([{"feature_name": "broken"}], user_id="ada")
    await batch.wait(PATIENCE)
    await site.app.pause("broken")
    await site.app.submit("broken", user_id="ada")
    url = f"/api/v1/batches/{batch.id}/items/0/retry"
    answers = [await site.client.post(url, headers=headers[caller]) for caller in ("bob", "ada", "admin")]
    assert [answer.status_code for answer in answers] == [404, 429, 200]


async def test_the_client_retries(site: Site) -> None:
    job_id = await site.submit(feature_name="broken")
    batch = await site.app.submit_batch([{"feature_name": "broken"}], user_id="ada")
    await site.app.wait(job_id, PATIENCE)
    await batch.wait(PATIENCE)
    async with served(site.gateway) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        assert (await client.retry(job_id)).warning
        assert await client.batch(batch.id).retry_failed(from_start=True) == 1
