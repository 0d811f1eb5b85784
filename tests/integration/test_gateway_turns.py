"""Turns over HTTP: a waiting caller is alive while it sends requests, a holder while it renews."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import orjson
import pytest

from fairlead.gateway import turn_events
from tests.integration.gateway_site import Site, served

MakeSite = Callable[..., Awaitable[Site]]
TURNS = "/api/v1/turns"
UNKNOWN = "01938f1c-8b21-8c42-9f5e-7da05e3f4061"


@pytest.fixture
async def http(site: Site) -> AsyncIterator[httpx2.AsyncClient]:
    """A client over a real connection, whose end shows that a caller is gone."""
    async with (
        served(site.gateway) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        yield client


async def opened(http: httpx2.AsyncClient, user_id: str, **fields: Any) -> dict[str, Any]:
    answer = await http.post(TURNS, json={"service": "slot", "user_id": user_id, **fields})
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


async def waited(http: httpx2.AsyncClient, turn: dict[str, Any], seconds: int = 20) -> dict[str, Any]:
    answer = await http.get(turn["links"]["status_url"], headers={"Prefer": f"wait={seconds}"})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def looked(http: httpx2.AsyncClient, turn: dict[str, Any]) -> dict[str, Any]:
    return dict((await http.get(turn["links"]["status_url"])).json())


async def finished(http: httpx2.AsyncClient, turn: dict[str, Any], **body: Any) -> httpx2.Response:
    return await http.post(turn["links"]["finish_url"], json=body)


@asynccontextmanager
async def listening(http: httpx2.AsyncClient, turn: dict[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    async with http.stream("GET", turn["links"]["events_url"]) as response:
        assert response.status_code == 200
        yield _events(response)


async def _events(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield orjson.loads(line.removeprefix("data: "))


async def until_status(http: httpx2.AsyncClient, turn: dict[str, Any], status: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (found := await looked(http, turn))["status"] != status:
            await asyncio.sleep(0.02)
    return found


async def until_absent(http: httpx2.AsyncClient, turn: dict[str, Any]) -> None:
    async with asyncio.timeout(30):
        while (await looked(http, turn))["kept_until"] is None:
            await asyncio.sleep(0.02)


# ---------------------------------------------------------------- from the queue to the slot, and out


async def test_a_turn_from_the_queue_to_its_result(http: httpx2.AsyncClient) -> None:
    first = await opened(http, "ada")
    assert (await waited(http, first))["status"] == "RUNNING"
    second = await opened(http, "bob")
    assert second["status"] == "PENDING"
    assert second["position"] == 1
    waiting = asyncio.create_task(waited(http, second))
    ended = await finished(http, first, result={"path": "cat.png"})
    assert (ended.status_code, ended.json()["status"], ended.json()["result"]) == (
        200,
        "COMPLETED",
        {"path": "cat.png"},
    )
    assert (await waiting)["status"] == "RUNNING"


async def test_a_turn_counts_with_the_cost_that_it_states(http: httpx2.AsyncClient) -> None:
    await waited(http, await opened(http, "ada"))
    await opened(http, "bob")
    turn = await opened(http, "eve", cost=12.5)
    why = (await http.get(f"/api/v1/jobs/{turn['turn_id']}/why")).json()
    estimates = [each["details"]["estimate"] for each in why["reasons"] if "estimate" in each["details"]]
    assert [(each["source"], each["cost"], each["seconds"]) for each in estimates] == [("stated", 12.5, 12.5)]


async def test_a_long_poll_that_times_out_returns_the_turn(http: httpx2.AsyncClient) -> None:
    await waited(http, await opened(http, "ada"))
    turn = await waited(http, await opened(http, "bob"), seconds=1)
    assert (turn["status"], turn["position"]) == ("PENDING", 1)


async def test_the_stream_has_position_slot_and_end(http: httpx2.AsyncClient) -> None:
    holder = await opened(http, "ada")
    await waited(http, holder)
    turn = await opened(http, "bob")
    async with listening(http, turn) as events:
        snapshot = await anext(events)
        assert (snapshot["type"], snapshot["turn"]["status"]) == ("SNAPSHOT", "PENDING")
        await finished(http, holder)
        received = []
        async for event in events:
            received.append(event)
            if event["type"] == "TURN_GRANTED":
                await finished(http, turn, result={"n": 1})
    assert {event["turn_id"] for event in received} == {turn["turn_id"]}
    assert [event["type"] for event in received if event["type"] != "POSITION"] == ["TURN_GRANTED", "TURN_ENDED"]
    granted = next(event for event in received if event["type"] == "TURN_GRANTED")
    assert granted["turn"]["status"] == "RUNNING"
    assert received[-1]["turn"]["status"] == "COMPLETED"


async def test_the_error_of_a_turn_is_stored(http: httpx2.AsyncClient) -> None:
    turn = await opened(http, "ada", metadata={"prompt": "a cat"})
    await waited(http, turn)
    ended = (await finished(http, turn, error="out of memory")).json()
    assert (ended["status"], ended["error"]["message"], ended["metadata"]) == (
        "FAILED",
        "out of memory",
        {"prompt": "a cat"},
    )


async def test_cancelling_a_turn_moves_the_next_one_up(http: httpx2.AsyncClient) -> None:
    holder = await opened(http, "ada")
    await waited(http, holder)
    second, third = await opened(http, "bob"), await opened(http, "cleo")
    left = await http.post(second["links"]["cancel_url"])
    assert left.json()["status"] == "CANCELLED"
    waiting = asyncio.create_task(waited(http, third))
    await http.post(holder["links"]["cancel_url"])
    assert (await waiting)["status"] == "RUNNING"


# ---------------------------------------------------------------- absent callers


async def test_an_absent_caller_is_skipped(http: httpx2.AsyncClient) -> None:
    holder = await opened(http, "ada")
    await waited(http, holder)
    absent, there = await opened(http, "bob"), await opened(http, "cleo")
    waiting = asyncio.create_task(waited(http, there))
    await finished(http, holder)
    assert (await waiting)["status"] == "RUNNING"
    skipped = await looked(http, absent)
    assert (skipped["status"], skipped["position"]) == ("PENDING", None)
    assert skipped["kept_until"] is not None
    behind = await opened(http, "dora")
    returned = await waited(http, absent, seconds=1)
    assert (returned["status"], returned["position"], returned["kept_until"]) == ("PENDING", 1, None)
    assert (await looked(http, behind))["position"] == 2


async def test_a_caller_that_returns_in_time_gets_the_slot(http: httpx2.AsyncClient) -> None:
    holder = await opened(http, "ada")
    await waited(http, holder)
    turn = await waited(http, await opened(http, "bob"), seconds=1)
    await finished(http, holder)
    assert (await waited(http, turn))["status"] == "RUNNING"


async def test_a_silent_waiting_caller_leaves_the_queue_and_keeps_its_place(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_events, "HEARTBEAT", 0.2)
    await waited(http, await opened(http, "ada"))
    turn = await opened(http, "bob")
    await until_absent(http, turn)
    monkeypatch.undo()
    behind = await opened(http, "cleo")
    renewed = (await http.post(turn["links"]["renew_url"])).json()
    assert (renewed["status"], renewed["kept_until"]) == ("PENDING", None)
    assert [(await looked(http, each))["position"] for each in (turn, behind)] == [1, 2]


async def test_a_caller_is_alive_while_its_stream_is_open(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_events, "HEARTBEAT", 0.2)
    await waited(http, await opened(http, "ada"))
    turn, gone = await opened(http, "bob"), await opened(http, "cleo")
    async with listening(http, turn) as events:
        await anext(events)
        await until_absent(http, gone)  # opened later, and silent
        assert (await looked(http, turn))["position"] == 1
    await until_absent(http, turn)


async def test_reading_a_turn_does_not_keep_it_alive(http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_events, "HEARTBEAT", 0.3)
    turn = await opened(http, "ada")
    await until_absent(http, turn)


async def test_a_holder_that_does_not_renew_loses_the_slot(http: httpx2.AsyncClient) -> None:
    holder = await opened(http, "ada", service="short")
    await waited(http, holder)
    turn = await opened(http, "bob", service="short")
    assert (await waited(http, turn))["status"] == "RUNNING"
    assert (await looked(http, holder))["error"]["code"] == "HOLDER_DIED"
    late = await finished(http, holder)
    assert (late.status_code, late.json()["code"]) == (409, "wrong_state")


async def test_a_holder_that_renews_keeps_the_slot(http: httpx2.AsyncClient) -> None:
    holder = await opened(http, "ada", service="short")
    held = await waited(http, holder)
    for _ in range(6):  # twice the lease
        await asyncio.sleep(held["lease_ttl"] / 3)
        renewed = await http.post(holder["links"]["renew_url"])
        assert renewed.json()["status"] == "RUNNING"
    assert (await finished(http, holder)).status_code == 200


# ---------------------------------------------------------------- invalid requests


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"user_id": "ada"}, "/service"),
        ({"service": "slot", "user_id": True}, "/user_id"),
        ({"service": "slot", "user_id": ""}, "/user_id"),
        ({"service": "nowhere", "user_id": "ada"}, "/service"),
        ({"service": "slot", "user_id": "ada", "priority": "urgent"}, "/priority"),
        ({"service": "slot", "user_id": "ada", "wait_timeout": 0}, "/wait_timeout"),
        ({"service": "slot", "user_id": "ada", "wait_timeout": "soon"}, "/wait_timeout"),
        ({"service": "slot", "user_id": "ada", "metadata": [1]}, "/metadata"),
        ({"service": "slot", "user_id": "ada", "cost": 0}, "/cost"),
        ({"service": "slot", "user_id": "ada", "cost": "much"}, "/cost"),
        ({"service": "slot", "user_id": "ada", "delay": 3}, "/delay"),
        ({"service": "echo_then_shout", "user_id": "ada"}, "/service"),
    ],
)
async def test_an_invalid_request_names_its_field_and_stores_nothing(
    site: Site, body: dict[str, Any], pointer: str
) -> None:
    answer = await site.client.post(TURNS, json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["pointer"] == pointer
    assert await site.job_ids() == []


async def test_a_job_is_not_a_turn(site: Site) -> None:
    job_id = await site.submit()
    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/renew"), ("POST", "/finish"), ("POST", "/cancel")):
        for unknown in (job_id, UNKNOWN):
            answer = await site.client.request(method, f"{TURNS}/{unknown}{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (method, path)


async def test_a_body_other_than_an_object_is_refused(http: httpx2.AsyncClient) -> None:
    turn = await opened(http, "ada")
    refused = await http.post(turn["links"]["finish_url"], json=[])
    assert (refused.status_code, refused.json()["detail"]) == (422, "must be a JSON object")


async def test_finishing_without_a_slot_is_refused(http: httpx2.AsyncClient) -> None:
    await waited(http, await opened(http, "ada"))
    turn = await opened(http, "bob")
    answer = await finished(http, turn)
    assert (answer.status_code, answer.json()["code"]) == (409, "wrong_state")
    assert (await looked(http, turn))["status"] == "PENDING"


async def test_a_result_or_an_error_but_not_both(http: httpx2.AsyncClient) -> None:
    turn = await opened(http, "ada")
    await waited(http, turn)
    answer = await finished(http, turn, result=1, error="no")
    assert (answer.status_code, answer.json()["pointer"]) == (422, "/error")
    assert (await looked(http, turn))["status"] == "RUNNING"


async def test_the_same_key_returns_the_same_turn(http: httpx2.AsyncClient) -> None:
    request = {"json": {"service": "slot", "user_id": "ada"}, "headers": {"Idempotency-Key": "once"}}
    first, again = await http.post(TURNS, **request), await http.post(TURNS, **request)  # type: ignore[arg-type]
    assert first.json()["turn_id"] == again.json()["turn_id"]
    assert again.headers["idempotent-replayed"] == "true"
    other = await http.post(
        TURNS, json={"service": "slot", "user_id": "ada", "wait_timeout": 9}, headers=request["headers"]
    )
    assert other.json()["code"] == "idempotency_mismatch"


async def test_a_user_s_key_sees_its_own_turns_only(make_site: MakeSite) -> None:
    site = await make_site(admin_key="an-admin-key-of-some-length")
    ada, bob = [
        {"Authorization": f"Bearer {(await site.app.create_key('user', user_id=user)).text}"} for user in ("ada", "bob")
    ]
    answer = await site.client.post(TURNS, json={"service": "slot"}, headers=ada)
    turn = answer.json()
    assert turn["user_id"] == "ada"
    assert (await site.client.get(turn["links"]["status_url"], headers=bob)).status_code == 404
    assert (await site.client.post(turn["links"]["cancel_url"], headers=bob)).status_code == 404
    refused = await site.client.post(TURNS, json={"service": "slot", "user_id": "ada"}, headers=bob)
    assert refused.status_code == 403
