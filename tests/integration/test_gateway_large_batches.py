"""A batch of many megabytes needs little memory and does not block other requests."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from fairlead.gateway import large_bodies
from tests.integration.cli_process import up
from tests.integration.gateway_site import Site

MakeSite = Callable[..., Awaitable[Site]]
BATCHES = "/api/v1/batches"
BULK = "/api/v1/jobs/bulk"
JSON, LINES = {"Content-Type": "application/json"}, {"Content-Type": "application/x-ndjson"}


def items(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"custom_id": f"item {n}", "feature_name": "echo", "input_data": {"text": "x, [y" * 200}, **fields}
        for n in range(count)
    ]


@pytest.mark.parametrize("lines", [False, True], ids=["JSON", "JSON Lines"])
async def test_a_large_batch_is_the_same_as_a_small_one(
    still_site: Site, monkeypatch: pytest.MonkeyPatch, lines: bool
) -> None:
    monkeypatch.setattr(large_bodies, "WHOLE", 100_000)
    wanted = items(500)
    if lines:
        body, headers, query = b"\n".join(map(orjson.dumps, wanted)), LINES, {"user_id": "ada"}
    else:
        body, headers, query = orjson.dumps({"items": wanted, "user_id": "ada"}), JSON, {}
    assert len(body) > large_bodies.WHOLE
    headers = {**headers, "Idempotency-Key": "the same"}
    first = await still_site.client.post(BATCHES, params=query, content=body, headers=headers)
    assert (first.status_code, first.json()["total"]) == (202, 500), first.text
    monkeypatch.setattr(large_bodies, "WHOLE", len(body))
    again = await still_site.client.post(BATCHES, params=query, content=body, headers=headers)
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert again.json() == first.json()
    found = (await still_site.client.get(f"{first.headers['location']}/items", params={"limit": 500})).json()["data"]
    assert [item["custom_id"] for item in found] == [item["custom_id"] for item in wanted]
    last = (await still_site.client.get(f"/api/v1/jobs/{found[-1]['job_id']}")).json()
    assert last["input_data"] == wanted[-1]["input_data"]


@pytest.mark.parametrize(
    ("headers", "body", "status", "pointer"),
    [
        (JSON, orjson.dumps({"user_id": "ada", "items": [*items(400), {"feature_name": "no"}]}), 422, "/items/400"),
        (LINES, b"\n".join(map(orjson.dumps, [*items(400), {"feature_name": "no"}])), 422, "/items/400"),
        (JSON, orjson.dumps({"user_id": "ada", "items": items(400)})[:-3], 400, None),
        (LINES, b"\n".join(map(orjson.dumps, items(400)))[:-3], 400, None),
        (JSON, orjson.dumps({"items": items(400)}), 422, "/user_id"),
        (JSON, orjson.dumps({"user_id": "x" * 300_000}), 422, "/items"),
        (JSON, orjson.dumps({"user_id": "ada", "items": "x" * 300_000}), 422, "/items"),
        (JSON, orjson.dumps({"user_id": "ada", "items": items(600)}), 422, "/items"),
        (JSON, orjson.dumps({"user_id": "ada", "items": items(1, metadata={"x": "x" * 400_000})}), 413, "/items/0"),
    ],
)
async def test_errors_in_a_large_batch_are_named(
    make_site: MakeSite,
    monkeypatch: pytest.MonkeyPatch,
    headers: dict[str, str],
    body: bytes,
    status: int,
    pointer: str | None,
) -> None:
    monkeypatch.setattr(large_bodies, "WHOLE", 100_000)
    site = await make_site(running=False, max_bulk=500, max_body=130_000)
    query = {"user_id": "ada"} if headers is LINES else {}
    refused = await site.client.post(BATCHES, params=query, content=body, headers=headers)
    assert refused.status_code == status, refused.text
    assert (refused.json().get("pointer") or "").startswith(pointer or "")
    assert await site.job_ids() == []


async def test_a_large_bulk_is_the_same_as_a_small_one(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "WHOLE", 100_000)
    site = await make_site(running=False, max_bulk=400)
    jobs = [
        {"user_id": "ada", "feature_name": "echo", "input_data": {"n": n, "text": "x, [y" * 200}} for n in range(400)
    ]
    body, headers = orjson.dumps({"jobs": jobs}), {**JSON, "Idempotency-Key": "the same"}
    assert len(body) > large_bodies.WHOLE
    first = await site.client.post(BULK, content=body, headers=headers)
    assert first.status_code == 202, first.text
    shown = (await site.client.get(f"/api/v1/jobs/{first.json()['jobs'][-1]['job_id']}")).json()
    assert shown["input_data"] == jobs[-1]["input_data"]
    refusals = {
        "/jobs/399/colour": {"jobs": [*jobs[:-1], {**jobs[-1], "colour": "red"}]},
        "/jobs": {"jobs": [*jobs, jobs[0]]},
        "/colour": {"jobs": jobs, "colour": "red"},
    }
    for pointer, wrong in refusals.items():
        refused = await site.client.post(BULK, json=wrong)
        assert (refused.status_code, refused.json()["pointer"]) == (422, pointer)
    assert (await site.client.post(BULK, content=body[:-2], headers=JSON)).status_code == 400
    monkeypatch.setattr(large_bodies, "WHOLE", len(body))
    again = await site.client.post(BULK, content=body, headers=headers)
    assert again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(
    ("headers", "body"),
    [(JSON, b'{"user_id": "ada", "items": [' + b"{}," * 10_000_000), (LINES, b"{}\n" * 10_000_000)],
    ids=["JSON", "JSON Lines"],
)
def test_too_many_items_are_refused_without_being_read(tmp_path: Path, headers: dict[str, str], body: bytes) -> None:
    with up(tmp_path) as server:
        before = peak(server.process.pid)
        url = f"{server.url}{BATCHES}?user_id=ada"
        refused = httpx2.post(url, content=body, headers=headers, timeout=60)
        assert (refused.status_code, refused.json()["pointer"]) == (422, "/items")
        assert peak(server.process.pid) - before < 200_000_000


def test_other_requests_are_served_while_a_large_batch_is_parsed(tmp_path: Path) -> None:
    heavy = b'{"feature_name": "echo", "input_data": {"a": [' + b"{}," * 600_000 + b"{}]}}"
    body = b'{"user_id": "ada", "items": [' + b",".join([heavy] * 12) + b"]}"
    with up(tmp_path) as server, httpx2.Client(base_url=server.url, timeout=60) as client:
        before = peak(server.process.pid)
        refused: list[httpx2.Response] = []
        url = f"{server.url}{BATCHES}"
        sending = threading.Thread(target=lambda: refused.append(post(url, body)))
        sending.start()
        answered = 0
        while sending.is_alive():
            assert client.get("/livez").status_code == 200
            answered += 1
        sending.join()
        assert refused[0].status_code == 422
        assert answered > 20
        assert peak(server.process.pid) - before < 500_000_000


def post(url: str, body: bytes) -> httpx2.Response:
    return httpx2.post(url, content=body, headers=JSON, timeout=60)


def peak(pid: int) -> int:
    """Return the peak memory of the process in bytes."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024
