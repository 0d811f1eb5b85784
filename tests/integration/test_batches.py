"""Batches over HTTP and in Python, in one process: submitted, followed, ended, cancelled, resumed, retried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest

from fairlead.app import batches
from fairlead.domain.access import Role
from fairlead.domain.batch import BatchView
from fairlead.domain.job import JobStatus
from fairlead.engine.events import ShuttingDown
from fairlead.errors import IdempotencyMismatch, InvalidInput, NotFound, TooManyWaiting, WrongState
from fairlead.gateway import models_batches
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import Site, client_of

MakeSite = Callable[..., Awaitable[Site]]
BATCHES = "/api/v1/batches"
UNKNOWN = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "POLL_EVERY", 0.02)
    monkeypatch.setattr(batches, "REPORT_EVERY", 0.0)


async def submitted(site: Site, items: list[dict[str, Any]], **fields: Any) -> str:
    response = await site.client.post(BATCHES, json={"user_id": "ada", "items": items, **fields})
    assert response.status_code == 202, response.text
    receipt = models_batches.BatchReceipt.model_validate(response.json())
    assert receipt.total == len(items)
    assert response.headers["location"] == receipt.links.status_url
    return receipt.batch_id


async def looked_at(site: Site, batch_id: str) -> models_batches.Batch:
    response = await site.client.get(f"{BATCHES}/{batch_id}")
    assert response.status_code == 200, response.text
    return models_batches.Batch.model_validate(response.json())


async def results(site: Site, batch_id: str) -> list[models_batches.ItemResult]:
    response = await site.client.get(f"{BATCHES}/{batch_id}/results")
    assert response.headers["content-type"].startswith("application/x-ndjson")
    return [models_batches.ItemResult.model_validate(orjson.loads(line)) for line in response.text.splitlines()]


def counted(batch: models_batches.Batch) -> dict[str, int]:
    return {status: count for status, count in batch.counts.items() if count}


# ---------------------------------------------------------------- submit and read


async def test_a_batch_runs_all_its_items_and_returns_their_results_in_order(site: Site) -> None:
    items = [{"custom_id": f"q{n}", "input_data": {"n": n}} for n in range(20)]
    batch_id = await submitted(site, items, feature_name="echo", name="twenty", metadata={"of": "ada"})
    ended = await site.client.get(f"{BATCHES}/{batch_id}", headers={"Prefer": "wait=20"})
    batch = models_batches.Batch.model_validate(ended.json())
    assert (counted(batch), batch.progress, batch.name, batch.metadata) == (
        {"COMPLETED": 20}, 1.0, "twenty", {"of": "ada"},
    )  # fmt: skip
    assert batch.finished_at is not None
    lines = await results(site, batch_id)
    assert [(line.item, line.custom_id, line.result) for line in lines] == [
        (n, f"q{n}", {"echo": {"n": n}}) for n in range(20)
    ]


async def test_json_lines_create_the_same_batch(site: Site) -> None:
    lines = [{"custom_id": "a", "input_data": {"n": 1}}, {"feature_name": "whisper"}]
    body = b"\n".join(map(orjson.dumps, lines)) + b"\n\n"
    response = await site.client.post(
        BATCHES,
        params={"user_id": "ada", "feature_name": "echo", "name": "of lines", "priority": "low"},
        content=body,
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert response.status_code == 202, response.text
    batch = await site.app.wait_batch(response.json()["batch_id"], 10)
    assert (batch.user_id, batch.name, batch.counts["COMPLETED"]) == ("ada", "of lines", 2)
    found = await results(site, batch.batch_id)
    jobs = [await site.app.get(line.job_id) for line in found]
    assert [(job.feature_name, job.priority) for job in jobs] == [("echo", "low"), ("whisper", "low")]


async def test_json_lines_may_contain_the_user(still_site: Site) -> None:
    body = b'{"user_id": "bob", "feature_name": "echo"}\r\n{"feature_name": "echo"}'
    response = await still_site.client.post(BATCHES, content=body, headers={"Content-Type": "application/x-ndjson"})
    assert response.status_code == 202, response.text
    assert (await looked_at(still_site, response.json()["batch_id"])).user_id == "bob"


async def test_one_bad_item_refuses_the_batch_and_every_bad_one_is_named(still_site: Site) -> None:
    items: list[Any] = [
        {"feature_name": "echo"},
        {"feature_name": "nothing"},
        {"feature_name": "echo", "priority": "urgent"},
        {"feature_name": "echo", "user_id": "bob"},
        {"feature_name": "echo", "custom_id": "twice"},
        {"feature_name": "echo", "custom_id": "twice"},
        {"feature_name": "echo", "colour": "red"},
        {"input_data": {}},
        7,
    ]
    response = await still_site.client.post(BATCHES, json={"user_id": "ada", "items": items})
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [
        "/items/1/feature_name", "/items/2/priority", "/items/3/user_id", "/items/5/custom_id", "/items/6/colour",
        "/items/7/feature_name", "/items/8",
    ]  # fmt: skip
    assert await still_site.job_ids() == []
    assert (await still_site.client.get(BATCHES)).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ([], "/items"),
        ({"user_id": "ada"}, "/items"),
        ({"user_id": "ada", "items": []}, "/items"),
        ({"items": [{"feature_name": "echo"}]}, "/user_id"),
        ({"user_id": 7.5, "items": [{"feature_name": "echo"}]}, "/user_id"),
        ({"user_id": "ada", "items": [{"feature_name": "echo"}], "input_data": {}}, "/input_data"),
        ({"user_id": "ada", "items": [{"feature_name": "echo"}], "name": ""}, "/name"),
        ({"user_id": "ada", "items": [{"feature_name": "echo"}], "metadata": []}, "/metadata"),
        ({"user_id": "ada", "items": [{"feature_name": "echo"}], "metadata": {"long": "x" * 17000}}, "/metadata"),
        ({"user_id": "ada", "items": [{"feature_name": "echo"}] * 4}, "/items"),
    ],
)
async def test_an_invalid_batch_is_refused_with_its_pointer(make_site: MakeSite, body: Any, pointer: str) -> None:
    site = await make_site(running=False, max_bulk=3)
    response = await site.client.post(BATCHES, json=body)
    assert (response.status_code, response.json()["pointer"]) == (422, pointer), response.text


async def test_the_error_names_the_line_that_is_not_json(still_site: Site) -> None:
    headers = {"Content-Type": "application/x-ndjson"}
    response = await still_site.client.post(BATCHES, content=b'{"feature_name": "echo"}\n{"feature', headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "bad_json")
    assert response.json()["detail"].startswith("line 2: ")


async def test_the_body_of_a_batch_has_its_own_limit(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_body=2048, max_batch_body=8192)
    items = [{"feature_name": "echo", "input_data": {"text": "x" * 400}}] * 10
    await submitted(site, items)
    refused = await site.client.post(BATCHES, json={"user_id": "ada", "items": items * 2})
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert "server.max_batch_body" in refused.json()["detail"]
    large = await site.client.post(
        BATCHES, json={"user_id": "ada", "items": [{"feature_name": "echo", "input_data": {"text": "x" * 3000}}]}
    )
    assert (large.status_code, large.json()["pointer"]) == (422, "/items/0/input_data")


async def test_the_cap_on_waiting_jobs_applies_to_a_batch_as_a_whole(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_waiting_per_user=3)
    refused = await site.client.post(BATCHES, json={"user_id": "ada", "items": [{"feature_name": "echo"}] * 4})
    assert (refused.status_code, refused.json()["pointer"]) == (429, "/items/3")
    assert await site.job_ids() == []
    assert (await site.client.get(BATCHES)).json()["data"] == []
    await submitted(site, [{"feature_name": "echo"}] * 3)


async def test_resuming_a_batch_or_retrying_an_item_counts_towards_the_cap(make_site: MakeSite) -> None:
    site = await make_site(max_waiting_per_user=3)
    batches = []
    for _ in range(2):
        batches.append(await submitted(site, [{"feature_name": "flaky"}] * 2))
        assert (await site.app.wait_batch(batches[-1], 30)).finished
    done = await site.submit(feature_name="echo")
    await site.app.wait(done, 30)
    for service in ("flaky", "echo"):
        await site.app.pause(service)
    first, second = [await site.client.post(f"{BATCHES}/{batch_id}/resume") for batch_id in batches]
    assert (first.status_code, second.status_code, second.json()["code"]) == (200, 429, "too_many_waiting")
    await site.app.retry_item(batches[1], 0)
    with pytest.raises(TooManyWaiting):
        await site.app.retry_item(batches[1], 1)
    assert (await site.client.post(f"/api/v1/jobs/{done}/steps/0/retry")).status_code == 429
    # The caller of a gateway without keys is an operator.
    assert (await site.client.post(f"{BATCHES}/{batches[1]}/items/1/retry")).status_code == 200


async def test_every_item_counts_towards_the_rate_limit(make_site: MakeSite) -> None:
    site = await make_site(running=False, submits_per_minute=10)
    await submitted(site, [{"feature_name": "echo"}] * 9)
    refused = await site.client.post(BATCHES, json={"user_id": "ada", "items": [{"feature_name": "echo"}] * 2})
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")


async def test_the_same_key_creates_one_batch(still_site: Site) -> None:
    body = {"user_id": "ada", "items": [{"feature_name": "echo", "input_data": {"n": n}} for n in range(3)]}
    headers = {"Idempotency-Key": "once"}
    first, *others = await asyncio.gather(
        *(still_site.client.post(BATCHES, json=body, headers=headers) for _ in range(4))
    )
    assert {other.json()["batch_id"] for other in others} == {first.json()["batch_id"]}
    replayed = [answer for answer in (first, *others) if answer.headers.get("idempotent-replayed") == "true"]
    assert len(replayed) == 3
    assert len(await still_site.job_ids()) == 3
    other = await still_site.client.post(BATCHES, json={**body, "items": body["items"][:2]}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    with pytest.raises(IdempotencyMismatch):
        await still_site.app.submit_batch(
            body["items"],  # type: ignore[arg-type]
            user_id="ada",
            name="another",
            idempotency_key="once",
        )


async def test_batches_are_listed_in_pages(still_site: Site) -> None:
    made = [await submitted(still_site, [{"feature_name": "echo"}], user_id=user) for user in ("ada", "bob", "ada")]
    page = models_batches.BatchPage.model_validate((await still_site.client.get(BATCHES, params={"limit": 2})).json())
    assert [batch.batch_id for batch in page.data] == [made[2], made[1]]
    rest = await still_site.client.get(BATCHES, params={"limit": 2, "cursor": page.next_cursor})
    assert [batch["batch_id"] for batch in rest.json()["data"]] == [made[0]]
    assert rest.json()["next_cursor"] is None
    of_bob = await still_site.client.get(BATCHES, params={"user_id": "bob"})
    assert [batch["batch_id"] for batch in of_bob.json()["data"]] == [made[1]]
    assert (await still_site.client.get(BATCHES, params={"cursor": "x"})).status_code == 422


async def test_items_are_listed_by_status_in_pages(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "echo"}, {"feature_name": "broken", "custom_id": "b"}] * 1)
    await submitted(site, [{"feature_name": "echo"}])
    await site.app.wait_batch(batch_id, 10)
    path = f"{BATCHES}/{batch_id}/items"
    first = models_batches.ItemPage.model_validate((await site.client.get(path, params={"limit": 1})).json())
    rest = models_batches.ItemPage.model_validate(
        (await site.client.get(path, params={"cursor": first.next_cursor})).json()
    )
    assert [(item.item, item.status) for item in first.data + rest.data] == [(0, "COMPLETED"), (1, "FAILED")]
    failed = models_batches.ItemPage.model_validate((await site.client.get(path, params={"status": "FAILED"})).json())
    (item,) = failed.data
    assert (item.custom_id, item.error and item.error["message"]) == ("b", "this input will never work")
    foreign = await site.client.get(path, params={"status": "FAILED", "cursor": first.next_cursor})
    assert foreign.status_code == 422


async def test_an_unknown_batch_or_item_is_404(still_site: Site) -> None:
    paths = [("GET", ""), ("GET", "/items"), ("GET", "/results"), ("GET", "/events"), ("POST", "/cancel")]
    for method, path in [*paths, ("POST", "/resume"), ("POST", "/items/0/retry")]:
        response = await still_site.client.request(method, f"{BATCHES}/{UNKNOWN}{path}")
        assert response.status_code == 404, path
    batch_id = await submitted(still_site, [{"feature_name": "echo"}])
    for name in ("1", "x", "%00"):
        response = await still_site.client.post(f"{BATCHES}/{batch_id}/items/{name}/retry")
        assert response.status_code == 404, name
    assert (await still_site.client.get(f"{BATCHES}/not-an-id")).status_code == 422


async def test_a_user_reads_and_changes_its_own_batches_only(make_site: MakeSite) -> None:
    site = await make_site(running=False, admin_key="an admin's key that is long enough")
    keys = {user: (await site.app.create_key(Role.USER, user_id=user, name=user)).text for user in ("ada", "bob")}
    async with client_of(create_gateway(site.app)) as client:
        as_ada, as_bob = ({"Authorization": f"Bearer {keys[user]}"} for user in ("ada", "bob"))
        made = await client.post(BATCHES, json={"items": [{"feature_name": "echo"}]}, headers=as_ada)
        assert made.status_code == 202, made.text
        batch_id = made.json()["batch_id"]
        assert (await client.get(f"{BATCHES}/{batch_id}", headers=as_ada)).json()["user_id"] == "ada"
        for method, path in [
            ("GET", ""), ("GET", "/items"), ("GET", "/results"), ("GET", "/events"),
            ("POST", "/cancel"), ("POST", "/resume"), ("POST", "/items/0/retry"),
        ]:  # fmt: skip
            refused = await client.request(method, f"{BATCHES}/{batch_id}{path}", headers=as_bob)
            assert refused.status_code == 404, path
        assert (await client.get(BATCHES, headers=as_bob)).json()["data"] == []
        assert (await client.get(BATCHES, params={"user_id": "ada"}, headers=as_bob)).status_code == 403
        forged = await client.post(BATCHES, json={"user_id": "ada", "items": [{}]}, headers=as_bob)
        assert forged.status_code == 403
        in_an_item = {"items": [{"feature_name": "echo"}, {"feature_name": "echo", "user_id": "ada"}]}
        forged = await client.post(BATCHES, json=in_an_item, headers=as_bob)
        assert (forged.status_code, forged.json()["pointer"]) == (422, "/items/1/user_id")
        assert (await client.get(f"{BATCHES}/{batch_id}", headers=as_ada)).json()["counts"]["PENDING"] == 1


# ---------------------------------------------------------------- follow


async def next_event(events: AsyncIterator[dict[str, Any] | None]) -> dict[str, Any]:
    while (event := await anext(events)) is None:
        pass
    return event


async def test_a_batch_is_followed_to_its_end(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "echo"}, {"feature_name": "gated"}])
    await site.gate.entered.wait()
    events = site.app.watch_batch(batch_id)
    first = await next_event(events)
    assert (first["type"], first["batch"]["batch_id"], first["total"]) == ("BATCH", batch_id, 2)
    site.gate.opened.set()
    seen = [event async for event in events if event is not None]
    assert {event["type"] for event in seen[:-1]} <= {"BATCH_PROGRESS"}
    assert (seen[-1]["type"], seen[-1]["counts"]["COMPLETED"], seen[-1]["progress"]) == ("BATCH_COMPLETE", 2, 1.0)


async def test_progress_is_reported_when_the_counts_change(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "gated"}, {"feature_name": "flaky"}])
    events = site.app.watch_batch(batch_id)
    event = await next_event(events)  # may include both already
    counts = event["counts"]
    while counts["FAILED"] == 0 or counts["RUNNING"] == 0:
        event = await asyncio.wait_for(next_event(events), 10)
        assert event["type"] == "BATCH_PROGRESS"
        assert event["counts"] != counts
        counts = event["counts"]
    assert (event["progress"], event["counts"]["FAILED"]) == (0.5, 1)


async def test_the_http_stream_ends_with_the_batch_and_a_reconnect_gets_204(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "echo"}])
    stream = await site.client.get(f"{BATCHES}/{batch_id}/events")
    assert stream.headers["content-type"].startswith("text/event-stream")
    ids = [line for line in stream.text.splitlines() if line.startswith("id:")]
    kinds = [line.removeprefix("event: ") for line in stream.text.splitlines() if line.startswith("event:")]
    assert (kinds[0], kinds[-1]) == ("BATCH", "BATCH_COMPLETE")
    assert ids[-1].endswith("-end")
    assert [each for each in ids if each.endswith("-end")] == ids[-1:]
    path, last = f"{BATCHES}/{batch_id}/events", ids[-1].removeprefix("id: ")
    assert (await site.client.get(path, headers={"Last-Event-ID": last})).status_code == 204
    again = await site.client.get(path, headers={"Last-Event-ID": "1"})
    assert "event: BATCH_COMPLETE" in again.text


async def test_many_followers_of_one_batch_share_its_reads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_id = await submitted(site, [{"feature_name": "echo"}])
    await site.app.wait_batch(batch_id, 10)
    reads = 0
    store = site.app._runtime.store
    get_batch = store.get_batch

    async def counting(batch_id: str) -> Any:
        nonlocal reads
        reads += 1
        return await get_batch(batch_id)

    monkeypatch.setattr(store, "get_batch", counting)
    await asyncio.gather(*(site.app.wait_batch(batch_id, 10) for _ in range(50)))
    assert reads <= 2


async def test_a_wait_after_a_retry_does_not_return_the_earlier_end(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "flaky", "custom_id": "f"}])
    assert (await site.app.wait_batch(batch_id, 10)).counts["FAILED"] == 1
    site.gate.opened.set()
    await site.app.retry_item(batch_id, "f")
    assert (await site.app.wait_batch(batch_id, 10)).counts["COMPLETED"] == 1


async def test_a_stopping_process_ends_its_followers(site: Site) -> None:
    batch = await site.app.submit_batch([{"feature_name": "gated"}])
    events = batch.events()
    await next_event(events)
    waiting = [asyncio.create_task(batch.wait()), asyncio.create_task(next_event(events))]
    await site.gate.entered.wait()
    await asyncio.sleep(0)
    site.app.hub.dismiss()
    waited, followed = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(waited, BatchView)
    assert not waited.finished
    assert isinstance(followed, ShuttingDown)


async def test_a_wait_has_a_timeout(site: Site) -> None:
    batch = await site.app.submit_batch([{"feature_name": "gated"}])
    seen = await batch.wait(0.05)
    assert (seen.finished, seen.progress, seen.total) == (False, 0.0, 1)


# ---------------------------------------------------------------- actions


async def test_a_cancelled_batch_has_ended(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "echo"}, *[{"feature_name": "gated"}] * 5])
    await site.gate.entered.wait()
    while (await looked_at(site, batch_id)).counts["COMPLETED"] == 0:
        await asyncio.sleep(0.01)
    response = await site.client.post(f"{BATCHES}/{batch_id}/cancel")
    cancelled = models_batches.BatchCancelled.model_validate(response.json())
    assert (cancelled.cancelled, counted(cancelled.batch)) == (5, {"COMPLETED": 1, "CANCELLED": 5})
    assert cancelled.batch.finished_at is not None
    again = await site.client.post(f"{BATCHES}/{batch_id}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "wrong_state")


async def test_a_resumed_batch_is_open_again_and_ends_again(site: Site) -> None:
    items = [{"feature_name": "flaky"}] * 3 + [{"feature_name": "broken"}, {"feature_name": "echo"}]
    batch_id = await submitted(site, items)
    first = await site.app.wait_batch(batch_id, 10)
    assert (first.counts["FAILED"], first.counts["COMPLETED"]) == (4, 1)
    site.gate.opened.set()
    response = await site.client.post(f"{BATCHES}/{batch_id}/resume")
    resumed = models_batches.BatchResumed.model_validate(response.json())
    assert resumed.resumed == 3
    ended = await site.app.wait_batch(batch_id, 10)
    assert (ended.counts["FAILED"], ended.counts["COMPLETED"]) == (1, 4)
    assert ended.finished_at is not None
    assert first.finished_at is not None
    assert ended.finished_at > first.finished_at
    refused = await site.client.post(f"{BATCHES}/{batch_id}/resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")


async def test_one_item_is_retried_by_its_custom_id_or_number(site: Site) -> None:
    items = [{"feature_name": "flaky", "custom_id": "f"}, {"feature_name": "broken"}, {"feature_name": "echo"}]
    batch_id = await submitted(site, items)
    await site.app.wait_batch(batch_id, 10)
    site.gate.opened.set()
    retried = await site.client.post(f"{BATCHES}/{batch_id}/items/f/retry")
    assert retried.status_code == 200, retried.text
    assert models_batches.Item.model_validate(retried.json()).custom_id == "f"
    # An item that is not retryable starts a new round too: the user may know better.
    assert (await site.client.post(f"{BATCHES}/{batch_id}/items/1/retry")).status_code == 200
    batch = await site.app.wait_batch(batch_id, 10)
    assert (batch.counts["COMPLETED"], batch.counts["FAILED"]) == (2, 1)
    lines = await results(site, batch_id)
    assert (lines[0].result, lines[1].status) == ({"worked": True}, "FAILED")
    again = await site.app.get(lines[1].job_id)
    assert [attempt["round"] for attempt in again.attempts or ()] == [0, 1]
    refused = await site.client.post(f"{BATCHES}/{batch_id}/items/2/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")


async def test_resuming_a_job_of_a_batch_reopens_the_batch(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "flaky"}])
    assert (await site.app.wait_batch(batch_id, 10)).finished
    site.gate.opened.set()
    ((job_id,),) = [[line.job_id for line in await results(site, batch_id)]]
    await site.app.resume(job_id)
    batch = await site.app.wait_batch(batch_id, 10)
    assert batch.counts["COMPLETED"] == 1


async def test_the_end_of_a_batch_is_recorded_without_a_reader(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "echo"}])
    store = site.app._runtime.store
    while (state := await store.get_batch(batch_id)) is None or state.finished_at is None:
        await asyncio.sleep(0.02)
    assert state.counts == {JobStatus.COMPLETED: 1}


async def test_an_item_whose_job_was_deleted_is_listed_as_removed(site: Site) -> None:
    batch_id = await submitted(site, [{"feature_name": "echo"}, {"feature_name": "gated"}])
    first = (await results(site, batch_id))[0]
    await site.app.wait(first.job_id, 10)
    await site.app.delete(first.job_id)
    assert counted(await looked_at(site, batch_id))["REMOVED"] == 1
    gone = (await results(site, batch_id))[0]
    assert (gone.status, gone.result) == ("REMOVED", None)
    site.gate.opened.set()
    other = (await results(site, batch_id))[1]
    await site.app.wait_batch(batch_id, 10)
    await site.app.delete(other.job_id)  # of a batch that has ended
    assert counted(await looked_at(site, batch_id)) == {"REMOVED": 2}
    for status, found in (("REMOVED", [0, 1]), ("COMPLETED", [])):
        page = await site.client.get(f"{BATCHES}/{batch_id}/items", params={"status": status})
        assert [item["item"] for item in page.json()["data"]] == found
    refused = await site.client.post(f"{BATCHES}/{batch_id}/items/0/retry")
    assert refused.status_code == 404


# ---------------------------------------------------------------- in Python


async def test_the_python_api_covers_all_actions(site: Site) -> None:
    batch = await site.app.submit_batch(
        [{"custom_id": "a", "input_data": {"n": 1}}, {"custom_id": "b", "feature_name": "flaky"}],
        user_id="ada",
        feature_name="echo",
        name="two",
    )
    assert (await batch.wait(10)).counts["FAILED"] == 1
    site.gate.opened.set()
    assert await batch.resume() == 1
    assert (await batch.wait(10)).counts["COMPLETED"] == 2
    lines = {item.custom_id: item.result async for item in site.app.batch(batch.id).results()}
    assert lines == {"a": {"echo": {"n": 1}}, "b": {"worked": True}}
    assert [event["type"] async for event in batch.events() if event is not None] == ["BATCH", "BATCH_COMPLETE"]
    with pytest.raises(WrongState):
        await batch.cancel()
    with pytest.raises(WrongState):
        await batch.retry("a")
    with pytest.raises(NotFound):
        await batch.retry(7)
    with pytest.raises(InvalidInput):
        await site.app.get_batch("x")
    page = await site.app.list_batches(user_id="ada")
    assert [each.name for each in page.data] == ["two"]
