"""Budgets from the outside: jobs are held, demoted or refused, and callers see what is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlead.app.budget_gate import BudgetState
from fairlead.app.fairlead import Fairlead
from fairlead.client import AsyncClient, Forbidden
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.errors import BudgetSpent, InvalidInput, NotFound, TurnEnded
from fairlead.executors.port import Call
from fairlead.gateway.app import create_gateway
from fairlead.store.sqlite import budgets as sqlite_budgets
from tests import redis_servers
from tests.integration.gateway_site import client_of, served

JOBS, BUDGETS = "/api/v1/jobs", "/api/v1/budgets"
DAILY = {"tokens": 100, "per": "month", "timezone": "Europe/Berlin", "each_user": True}


@asynccontextmanager
async def site(
    folder: Path, hook: dict[str, Any] | None = None, **budgets: Any
) -> AsyncIterator[tuple[Fairlead, httpx2.AsyncClient]]:
    """An app whose calls use as many tokens as their input says, and its gateway. `hook` has the answers of a priority
    hook by user."""
    config = {"services": {"slot": {"limit": 1}}, "budgets": budgets, "plans": {"free": {}}}
    config["users"] = {"ada": {"plan": "free"}}
    app = Fairlead(Settings(Config.model_validate(config), f"sqlite:///{folder / 'budgets.db'}"))

    if hook is not None:
        app.priority(hook.get)

    @app.service("chat", limit=1)
    async def chat(call: Call) -> dict[str, Any]:
        call.report_usage(tokens_out=call.params.get("n", 100))
        return {}

    @app.model("talk", limit=1)
    async def talk(messages: list[Any], call: Call) -> str:
        call.report_usage(tokens_out=100)
        return "hello"

    async with app.running(), client_of(create_gateway(app)) as client:
        yield app, client


async def submit(client: httpx2.AsyncClient, user: str = "ada", **fields: Any) -> httpx2.Response:
    body = {"feature_name": "chat", "user_id": user, "input_data": {"n": 100}, **fields}
    return await client.post(JOBS, json=body)


async def spend(app: Fairlead, tokens: int, user: str = "ada") -> None:
    await (await app.submit("chat", {"n": tokens}, user_id=user)).result(20)


def assert_nothing_left(refused: httpx2.Response, budget: str) -> None:
    assert (refused.headers["X-Fairlead-Budget"], refused.headers["X-Fairlead-Budget-Remaining"]) == (budget, "0")
    assert 0 < int(refused.headers["X-Fairlead-Budget-Reset"]) <= 31 * 86400 + 3600


async def held(app: Fairlead, job_id: str) -> None:
    async with asyncio.timeout(20):
        while (await app.get(job_id)).status != "RETRYING":
            await asyncio.sleep(0.01)


async def test_a_held_job_says_why_and_goes_on_when_the_amount_is_raised(tmp_path: Path) -> None:
    async with site(tmp_path, daily=DAILY) as (app, client):
        first = await submit(client, input_data={"n": 60})
        assert first.headers["X-Fairlead-Budget"] == "daily"
        assert first.headers["X-Fairlead-Budget-Remaining"] == "100"
        assert int(first.headers["X-Fairlead-Budget-Reset"]) > 0
        await app.wait(first.json()["job_id"], timeout=20)
        second = await submit(client, input_data={"n": 60})
        assert second.headers["X-Fairlead-Budget-Remaining"] == "40"
        await app.wait(second.json()["job_id"], timeout=20)
        waiting = [(await submit(client)).json()["job_id"] for _ in range(3)]
        for job_id in waiting:
            await held(app, job_id)
        why = (await client.get(f"{JOBS}/{waiting[0]}/why")).json()
        (state,) = (await client.get(BUDGETS, params={"user_id": "ada"})).json()["data"]
        assert [reason["code"] for reason in why["reasons"]] == ["budget_spent"]
        assert why["reasons"][0]["details"]["budget"] == "daily"
        assert why["reasons"][0]["details"]["until"] == state["window_end"]
        assert (state["used"], state["remaining"], state["spent"], state["held"]) == (120.0, 0.0, True, 3)
        await spend(app, 10, "bob")  # held jobs block no other user
        changed = await client.put("/admin/budgets/daily", json={"amount": 10_000, "user_id": "ada"})
        assert (changed.json()["amount"], changed.json()["declared_amount"]) == (10_000.0, 100.0)
        for job_id in waiting:
            job = await app.wait(job_id, timeout=20)
            assert (job.status, job.error) == ("COMPLETED", None)
        reset = await client.delete("/admin/budgets/daily", params={"user_id": "ada"})
        assert reset.json()["amount"] == 100.0
        assert [record.action for record in (await app.audit()).data] == ["budget.reset", "budget.set"]


async def test_a_spent_budget_demotes_new_jobs(tmp_path: Path) -> None:
    async with site(tmp_path, daily={**DAILY, "at_end": "demote", "plan": "free"}) as (app, client):
        await spend(app, 100)
        receipt = (await submit(client, priority="high")).json()
        assert receipt["priority"] == "low"
        assert (await app.wait(receipt["job_id"], timeout=20)).status == "COMPLETED"
        assert (await submit(client, "bob", priority="high")).json()["priority"] == "high"  # has another plan


async def test_a_spent_budget_refuses_new_jobs_and_keeps_accepted_ones(tmp_path: Path) -> None:
    async with site(tmp_path, daily={**DAILY, "at_end": "refuse"}) as (app, client):
        key = {"Idempotency-Key": "once"}
        body = {"feature_name": "chat", "user_id": "ada", "input_data": {"n": 100}}
        first = await client.post(JOBS, json=body, headers=key)
        await app.wait(first.json()["job_id"], timeout=20)
        refused = await submit(client)
        problem = refused.json()
        assert (refused.status_code, problem["code"], problem["retryable"]) == (402, "budget_spent", False)
        assert problem["details"]["budget"] == "daily"
        assert (problem["details"]["amount"], problem["details"]["used"]) == (100.0, 100.0)
        assert_nothing_left(refused, "daily")
        again = await client.post(JOBS, json=body, headers=key)
        assert (again.status_code, again.json()["job_id"]) == (202, first.json()["job_id"])
        bulk = await client.post(f"{JOBS}/bulk", json={"jobs": [{**body, "user_id": "bob"}, body]})
        assert (bulk.status_code, bulk.json()["pointer"]) == (402, "/jobs/1")
        assert_nothing_left(bulk, "daily")
        batch = await client.post("/api/v1/batches", json={"user_id": "ada", "items": [{**body}]})
        assert batch.status_code == 402
        assert_nothing_left(batch, "daily")
        with pytest.raises(BudgetSpent):
            await app.submit("chat", {"n": 1}, user_id="ada")
        await spend(app, 1, "bob")


async def test_the_openai_front_answers_insufficient_quota_which_clients_do_not_repeat(tmp_path: Path) -> None:
    async with site(tmp_path, daily={**DAILY, "at_end": "refuse"}) as (_, client):
        chat = {"model": "talk", "messages": [{"role": "user", "content": "hi"}], "user": "ada"}
        url = "/v1/chat/completions"
        answers = [await client.post(url, json=chat) for _ in range(2)]
        refused = answers[1]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert refused.json()["error"]["code"] == refused.json()["error"]["type"] == "insufficient_quota"
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        assert_nothing_left(refused, "daily")


async def test_a_turn_is_refused_because_its_caller_cannot_wait_for_the_next_window(tmp_path: Path) -> None:
    async with site(tmp_path, daily={**DAILY, "service": ["slot", "chat"]}) as (app, _):
        async with app.turn("slot", user_id="ada") as turn:
            turn.usage = {"tokens_out": 150}
        with pytest.raises((BudgetSpent, TurnEnded)) as refused:
            async with app.turn("slot", user_id="ada"):
                raise AssertionError("it has a slot")
        assert isinstance(refused.value, BudgetSpent)


async def test_users_see_their_own_budgets_and_operators_all(tmp_path: Path) -> None:
    async with site(
        tmp_path,
        daily=DAILY,
        free={"plan": "free", "seconds": 60, "per": "hour"},
        bobs={"user": "bob", "tokens": 5, "per": "day"},
    ) as (app, client):
        await spend(app, 5, "ada")
        await spend(app, 7, "bob")
        states = (await client.get(BUDGETS)).json()["data"]
        assert {(each["budget"], each["user_id"]) for each in states} == {
            ("daily", "ada"),
            ("daily", "bob"),
            ("free", None),
            ("bobs", "bob"),
        }
        await app.create_key("admin", name="ops")
        secret = (await app.create_key("user", user_id="ada")).text
        own = {"Authorization": f"Bearer {secret}"}
        states = (await client.get(BUDGETS, headers=own)).json()["data"]
        assert {(each["budget"], each["user_id"]) for each in states} == {("daily", "ada"), ("free", None)}
        assert states[1]["used"] > 0
        assert (await client.get(BUDGETS, params={"user_id": "bob"}, headers=own)).status_code == 403
        async with served(create_gateway(app)) as port, AsyncClient(f"http://127.0.0.1:{port}", secret) as users:
            assert await users.budgets() == states
            assert await users.budgets(budget="free") == states[1:]
            with pytest.raises(Forbidden):
                await users.budgets(user_id="bob")
        assert (await client.put("/admin/budgets/daily", json={"amount": 1}, headers=own)).status_code == 403


async def test_a_change_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with site(tmp_path, daily=DAILY, all={"tokens": 5, "per": "day"}) as (app, client):
        for wrong in (0, -1, "1", True, 1e16, None):
            assert (await client.put("/admin/budgets/all", json={"amount": wrong})).status_code == 422, wrong
        with pytest.raises(InvalidInput, match="not for each user"):
            await app.set_budget("all", 1, user_id="ada")
        with pytest.raises(NotFound, match="known are: all, daily"):
            await app.set_budget("none", 1)
        assert (await client.get(BUDGETS, params={"budget": "none"})).status_code == 404
        assert (await client.get(BUDGETS, params={"budgets": "all"})).status_code == 422, "no such parameter"
        unread = await client.put("/admin/budgets/all", json={"amount": "many"})
        assert unread.json()["detail"] == "amount: should be a valid number"
        assert (await client.put("/admin/budgets/all", json={})).json()["detail"] == "amount: is required"


@pytest.mark.parametrize(
    ("measure", "most", "wrong"),
    [("seconds", 1e9, 1e9 + 1), ("tokens", 10**15, 10**15 + 1), ("tokens", 1, 0.5)],
)
async def test_an_operator_sets_no_amount_that_the_configuration_would_refuse(
    tmp_path: Path, measure: str, most: float, wrong: float
) -> None:
    async with site(tmp_path, own={measure: 5, "per": "day"}) as (app, client):
        refused = await client.put("/admin/budgets/own", json={"amount": wrong})
        assert (refused.status_code, refused.json()["pointer"]) == (422, "/amount")
        assert (await app.set_budget("own", most)).amount == most


async def test_reached_thresholds_are_announced_to_endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users between two thresholds don't take the place of those whose threshold is not announced yet."""
    monkeypatch.setattr(sqlite_budgets, "MOST_WARNED", 1)
    async with site(tmp_path, daily={**DAILY, "warn_at": [0.5, 0.9]}) as (app, client):
        endpoint = {"url": "https://example.org/hook", "events": ["budget.threshold"]}
        assert (await client.post("/api/v1/webhooks/endpoints", json=endpoint)).status_code == 201

        async def announced(count: int) -> None:
            async with asyncio.timeout(20):
                while len(found := (await client.get("/api/v1/webhooks/deliveries")).json()["data"]) < count:
                    await asyncio.sleep(0.01)
            assert [each["event"] for each in found] == ["budget.threshold"] * count

        await spend(app, 60)
        await announced(1)
        await spend(app, 95, "bob")
        await announced(3)


async def test_a_hook_may_name_the_plan_whose_budget_counts(tmp_path: Path) -> None:
    async with site(tmp_path, hook={"bob": {"plan": "free"}}, daily={**DAILY, "plan": "free"}) as (app, client):
        await spend(app, 100, "bob")
        job_id = (await submit(client, "bob", priority="high")).json()["job_id"]
        await held(app, job_id)
        await spend(app, 100, "cyn")
        await spend(app, 100, "cyn")
        states = (await client.get(BUDGETS, params={"user_id": "bob"})).json()["data"]
        assert [(each["budget"], each["spent"]) for each in states] == [("daily", True)]
        assert (await client.get(BUDGETS, params={"user_id": "cyn"})).json()["data"] == []


async def test_a_budget_holds_over_all_calls_at_once_and_a_lost_queue(engines: dict[str, str]) -> None:
    """60 jobs of 7 tokens, six at once: the budget of 100 is exceeded by less than six calls, also if Redis is lost."""
    config = Config.model_validate({"budgets": {"all": {"tokens": 100, "per": "month"}}})
    app = Fairlead(Settings(config, **engines))

    @app.service("chat", limit=6)
    async def chat(call: Call) -> None:
        await asyncio.sleep(0.01)
        call.report_usage(tokens_out=7)

    async with app.running(), asyncio.timeout(60):
        jobs = [await app.submit("chat", {}, user_id=f"user-{n % 5}") for n in range(60)]
        state = await _until_held(app)
        assert 100 <= state.used < 100 + 6 * 7
        assert state.held == 60 - state.used / 7
        if "redis_url" in engines:
            redis_servers.empty(engines["redis_url"])
            await app.submit("chat", {}, user_id="late")
            again = await _until_held(app, 1 + state.held)
            assert again.used == state.used
        await app.set_budget("all", 1000)
        for job in jobs:
            await job.result(60)
        (state,) = await app.budgets()
        assert (state.reserved, state.held) == (0, 0)
        assert state.used in (420, 427)


async def _until_held(app: Fairlead, held: int = 1) -> BudgetState:
    """The state of the only budget once nothing runs and nothing waits, except for the budget."""
    while True:
        counts = (await app.status())["jobs"]
        (state,) = await app.budgets()
        if not counts.get("PENDING") and not counts.get("RUNNING") and state.held >= held:
            return state
        await asyncio.sleep(0.02)
