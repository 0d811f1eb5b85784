"""The usage ledger from the outside: what users and operators read, in every form, and what is refused."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from fairlead.app.fairlead import Fairlead
from fairlead.client import AsyncClient
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.executors.port import Call
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import client_of, served

USAGE = "/api/v1/usage"
CONFIG = {
    "services": {"slot": {"limit": 1}},
    "groups": {"acme": {}, "red": {"parent": "acme"}},
    "users": {"ada": {"group": "red"}},
    "prices": {"chat": {"per_call": 1.0, "models": {"small": {"per_million_tokens_in": 500_000.0}}}},
}


def declare(app: Fairlead) -> None:
    @app.service("chat", limit=4)
    async def chat(call: Call) -> dict[str, Any]:
        call.report_usage(tokens_in=call.params["n"], tokens_out=2, model=call.params.get("model"))
        return {}

    @app.service("broken", limit=4, max_attempts=1)
    async def broken(call: Call) -> None:
        call.report_usage(tokens_in=-1, units=3)
        raise RuntimeError("no")


@asynccontextmanager
async def opened(database: Path) -> AsyncIterator[Fairlead]:
    app = Fairlead(Settings(Config.model_validate(CONFIG), f"sqlite:///{database}"))
    declare(app)
    async with app.running():
        yield app


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Fairlead]:
    """An app in which ada made two calls and a turn, and =bob two calls, one of which failed."""
    async with opened(tmp_path / "usage.db") as app:
        jobs = [
            await app.submit("chat", {"n": 3, "model": "small"}, user_id="ada"),
            await app.submit("chat", {"n": 4}, user_id="ada"),
            await app.submit("chat", {"n": 5}, user_id="=bob"),
        ]
        for job in jobs:
            await job.result(20)
        failed = await app.submit("broken", {}, user_id="=bob")
        with pytest.raises(Exception, match="no"):
            await failed.result(20)
        async with app.turn("slot", user_id="ada") as turn:
            turn.usage = {"units": 2.5}
        yield app


@pytest.fixture
async def http(app: Fairlead) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(create_gateway(app)) as client:
        yield client


async def rows(client: httpx2.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get(USAGE, params=params)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


async def test_jobs_turns_and_failures_are_summed_up_with_their_prices(http: httpx2.AsyncClient) -> None:
    found = await rows(http, group_by="user,service,outcome", interval="total")
    assert await rows(http, group_by=["user", "service,outcome"], interval="total") == found, "repeated names add up"
    shown = [
        [row[name] for name in ("user", "service", "outcome", "calls", "tokens_in", "units", "price", "ignored")]
        for row in found
    ]
    assert shown == [
        ["=bob", "broken", "failed", 1, 0, 3.0, 0.0, 1],
        ["=bob", "chat", "success", 1, 5, 0.0, 1.0, 0],
        ["ada", "chat", "success", 2, 7, 0.0, 2.5, 0],
        ["ada", "slot", "success", 1, 0, 2.5, 0.0, 0],
    ]
    (day,) = await rows(http, user="ada", service="chat", model="small")
    assert (day["calls"], day["tokens_in"], day["tokens_out"], day["reported"]) == (1, 3, 2, 1)
    assert day["start"].endswith("T00:00:00.000Z")


async def test_a_cancelled_call_counts_what_its_handler_has_reported(tmp_path: Path) -> None:
    app = Fairlead(
        Settings(Config.model_validate({"prices": {"long": {"per_call": 2.0}}}), f"sqlite:///{tmp_path}/a.db")
    )
    reported = asyncio.Event()

    @app.service("long", limit=2)
    async def long(call: Call) -> None:
        call.report_usage(tokens_in=10, tokens_out=50)
        reported.set()
        await asyncio.Event().wait()

    async with app.running():
        alone = await app.submit("long", {}, user_id="ada")
        await reported.wait()
        await app.cancel(alone.id)
        reported.clear()
        batch = await app.submit_batch([{"feature_name": "long"}], user_id="bob")
        await reported.wait()
        await app.cancel_batch(batch.id)
        found = await app.usage(group_by="user,outcome", interval="total")
    shown = [(row.groups, row.calls, row.tokens_in, row.tokens_out) for row in found.data]
    assert shown == [({"user": user, "outcome": "cancelled"}, 1, 10, 50) for user in ("ada", "bob")]


async def test_pages_csv_json_lines_and_the_client_have_the_same_rows(app: Fairlead) -> None:
    query = {"group_by": "user,service", "interval": "total"}
    async with served(create_gateway(app)) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        async with httpx2.AsyncClient(base_url=client.url) as http:
            everything = await rows(http, **query)
            paged: list[dict[str, Any]] = []
            cursor: dict[str, str] = {}
            while True:
                page = (await http.get(USAGE, params={**query, **cursor, "limit": 1})).json()
                paged += page["data"]
                if page["next_cursor"] is None:
                    break
                cursor = {"cursor": page["next_cursor"]}
            lines = await http.get(USAGE, params=query, headers={"Accept": "application/x-ndjson"})
            table = await http.get(USAGE, params={**query, "format": "csv"})
        assert list(await client.usage(("user", "service"), interval="total")) == everything
    assert len(everything) == 4
    assert paged == everything
    assert lines.headers["content-type"] == "application/x-ndjson"
    assert [orjson.loads(line) for line in lines.text.splitlines()] == everything
    assert table.headers["content-type"].startswith("text/csv")
    read = list(csv.DictReader(io.StringIO(table.text)))
    # A spreadsheet must not take the name of a user for a formula.
    assert [row["user"] for row in read] == ["'=bob", "'=bob", "ada", "ada"]
    assert [int(row["calls"]) for row in read] == [row["calls"] for row in everything]


async def test_usage_is_grouped_and_filtered_by_group_in_every_form(app: Fairlead) -> None:
    query = {"group_by": "group,service", "interval": "total"}
    async with served(create_gateway(app)) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        async with httpx2.AsyncClient(base_url=client.url) as http:
            found = [(row["group"], row["service"], row["calls"]) for row in await rows(http, **query)]
            table = await http.get(USAGE, params={**query, "group": "acme", "format": "csv"})
            lines = await http.get(USAGE, params={**query, "group": "acme/red", "format": "jsonl"})
        members = await client.usage("group", interval="total", group="acme")
    assert found == [("", "broken", 1), ("", "chat", 1), ("acme/red", "chat", 2), ("acme/red", "slot", 1)]
    assert [(row["group"], row["calls"]) for row in members] == [("acme/red", 3)]
    read = [(row["group"], row["service"], int(row["calls"])) for row in csv.DictReader(io.StringIO(table.text))]
    assert read == [(row["group"], row["service"], row["calls"]) for row in map(orjson.loads, lines.text.splitlines())]
    assert read == found[2:]


async def test_a_users_key_sees_its_own_usage_only(app: Fairlead, http: httpx2.AsyncClient) -> None:
    keys = {
        role: (await app.create_key(role, user_id="ada" if role == "user" else None, name=role)).text
        for role in ("admin", "service", "viewer", "user")
    }

    async def users(role: str, **params: str) -> Any:
        headers = {"Authorization": f"Bearer {keys[role]}"}
        answer = await http.get(USAGE, params={"group_by": "user", "interval": "total", **params}, headers=headers)
        return [row["user"] for row in answer.json()["data"]] if answer.status_code == 200 else answer.status_code

    assert await users("user") == ["ada"]
    assert await users("user", user="ada") == ["ada"]
    assert await users("user", user="=bob") == 403
    for role in ("service", "viewer", "admin"):
        assert await users(role) == ["=bob", "ada"]
        assert await users(role, user="=bob") == ["=bob"]
    assert (await http.get(USAGE)).status_code == 401


@pytest.mark.parametrize(
    ("params", "pointer"),
    [
        ({"group_by": "user,shoe_size"}, "/group_by"),
        ({"interval": "week"}, "/interval"),
        ({"from": "yesterday"}, "/from"),
        ({"to": "2026-13-01"}, "/to"),
        ({"from": "2026-02-01", "to": "2026-01-01"}, "/from"),
        ({"outcome": "lucky"}, "/outcome"),
        ({"limit": "0"}, "/limit"),
        ({"limit": "10001"}, "/limit"),
        ({"format": "xml"}, "/format"),
        ({"cursor": "WzEsMl0"}, "/cursor"),
        ({"cursor": "%%%"}, "/cursor"),
        ({"user": "a\0b"}, "/user"),
        ({"shoe_size": "44"}, "/shoe_size"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused_with_its_parameter(
    http: httpx2.AsyncClient, params: dict[str, str], pointer: str
) -> None:
    answer = await http.get(USAGE, params=params)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert pointer in answer.text


async def test_a_cursor_of_another_question_is_refused(http: httpx2.AsyncClient) -> None:
    cursor = (await http.get(USAGE, params={"group_by": "user", "limit": "1"})).json()["next_cursor"]
    assert (await http.get(USAGE, params={"group_by": "user", "cursor": cursor})).status_code == 200
    assert (await http.get(USAGE, params={"group_by": "service", "cursor": cursor})).status_code == 422


@pytest.mark.parametrize("interval", ["hour", "day", "month", "total"])
async def test_a_period_may_have_any_times_of_the_calendar(http: httpx2.AsyncClient, interval: str) -> None:
    answer = await http.get(USAGE, params={"from": "0001-01-01", "to": "9999-12-31T23:59:59.9Z", "interval": interval})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["from"], answer.json()["to"]) == ("1970-01-01T00:00:00.000Z", "9999-12-31T00:00:00.000Z")
    assert [row["calls"] for row in answer.json()["data"]] == [5]
