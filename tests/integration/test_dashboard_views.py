"""The views of the dashboard over its WebSocket: a state, then patches, on both pairs of engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
import pytest

from fairlead import Call, Config, Fairlead, Permanent, Unavailable
from fairlead.domain.stats import KEPT_MINUTES, MinuteStats, minute_of
from fairlead.engine import counters
from fairlead.engine.roles import Roles
from fairlead.gateway.app import create_gateway
from fairlead.gateway.dashboard import views
from fairlead.gateway.dashboard.live_views import LiveViews
from fairlead.gateway.dashboard.views import view_of
from fairlead.gateway.permissions import KEYLESS
from fairlead.observe.dashboard import dashboard as boards
from fairlead.pacing import CachedQuery, DutyCycle
from fairlead.store.dashboard import RecordMinuteStats
from tests.integration.dashboard_client import Following, following
from tests.integration.gateway_site import served

UNKNOWN = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute views without pauses."""
    monkeypatch.setattr(boards, "_cached", lambda query, every: CachedQuery(query, DutyCycle(1.0, 0.01)))
    monkeypatch.setattr(counters, "EVERY", 0.05)
    for name, kind in views.KINDS.items():
        monkeypatch.setitem(views.KINDS, name, replace(kind, every=0.02))


@dataclass
class DashboardSite:
    app: Fairlead
    port: int
    board: LiveViews
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def fill(self) -> None:
        """Occupy both slots of `draw` with jobs of zed."""
        for _ in range(2):
            await self.app.submit("draw", user_id="zed")
        for _ in range(2):
            await self.entered.get()

    async def computed(self, **view: Any) -> dict[str, Any]:
        """Compute the view once, without followers."""
        found = await view_of(view, KEYLESS).query(self.app)
        return dict(orjson.loads(orjson.dumps(found, default=str)))

    async def agrees(self, page: Following, **view: Any) -> None:
        """Wait until the page shows the current state: leases and heartbeats keep changing it."""
        while True:
            current = await self.computed(**view)
            if {name: value for name, value in page.state.items() if name != "now"} == current:
                return
            await page.hear()


def declared(board_site: DashboardSite) -> None:
    app = board_site.app

    @app.service(limit=2)
    async def draw(call: Call) -> dict[str, Any]:
        board_site.entered.put_nowait(call.job_id)
        await board_site.opened.wait()
        return {"drawn": call.params, "nothing": None}

    @app.service(limit=5)
    async def tell(call: Call) -> dict[str, Any]:
        if call.params.get("bad"):
            raise Permanent(f"no story {call.params['bad']} of 12.5 s")
        return {"done": True}

    app.pipeline("story", ["tell", "draw"])


@asynccontextmanager
async def _running(engines: dict[str, str]) -> AsyncIterator[DashboardSite]:
    app = Fairlead(Config.model_validate({}), **engines)
    gateway = create_gateway(app)
    board_site = DashboardSite(app, 0, gateway.state.live_views)
    declared(board_site)
    async with app.running(), served(gateway) as port:
        board_site.port = port
        yield board_site


@pytest.fixture
async def board_site(engines: dict[str, str]) -> AsyncIterator[DashboardSite]:
    async with _running(engines) as board_site:
        yield board_site


@pytest.fixture
async def small(embedded: dict[str, str]) -> AsyncIterator[DashboardSite]:
    """For tests that do not depend on the engine."""
    async with _running(embedded) as board_site:
        yield board_site


async def test_the_overview_follows_slots_and_queues(board_site: DashboardSite) -> None:
    async with following(board_site.port) as page:
        await page.ask(view="overview")
        await page.until(lambda state: state["services"]["draw"].get("slots") == {})  # known once the queue is built
        jobs = [await board_site.app.submit("draw", user_id=f"u{n}") for n in range(4)]
        await page.until(lambda state: state["services"]["draw"]["waiting"]["medium"] == 2)
        draw = page.state["services"]["draw"]
        assert (draw["in_use"], draw["limit"], draw["limit_source"]) == (2, 2, "config")
        assert {slot["job_id"] for slot in draw["slots"].values()} == {await board_site.entered.get() for _ in range(2)}
        assert {slot["feature_name"] for slot in draw["slots"].values()} == {"draw"}
        await page.until(lambda state: "oldest_since" in state["services"]["draw"])
        await board_site.agrees(page, view="overview")

        await board_site.app.set_limit("draw", 3)
        await board_site.app.pause("tell")
        await page.until(lambda state: state["services"]["draw"]["in_use"] == 3 and state["services"]["tell"]["paused"])
        assert page.state["services"]["draw"]["limit_source"] == "override"

        board_site.opened.set()
        for job in jobs:
            await job.result(timeout=30)
        await page.until(lambda state: sum(state["history"]["finished"]) == 4)
        await page.until(lambda state: not state["services"]["draw"]["slots"])
        assert "wait_p50" in page.state["services"]["draw"]
        await board_site.agrees(page, view="overview")


async def test_the_overview_shows_findings_and_processes(board_site: DashboardSite) -> None:
    async with following(board_site.port) as page:
        await page.ask(view="overview")
        health = (await page.until(lambda state: state["health"].get("well")))["health"]
        assert health["findings"]["no-keys"]["level"] == "note"
        assert (health["workers"], health["managers"], health["gateways"]) == (1, 1, 1)
        assert "unknown" not in health
        await board_site.app.submit("tell", {"bad": 1})
        await page.until(lambda state: state["failures"] == {"PERMANENT": 1})


async def test_a_service_shows_the_next_jobs_and_the_users_of_its_slots(board_site: DashboardSite) -> None:
    await board_site.fill()
    for user_id in ("ada", "ada", "bob"):
        await board_site.app.submit("draw", user_id=user_id)
    late = await board_site.app.submit("draw", user_id="dee", priority="high")
    async with following(board_site.port) as page:
        await page.ask(view="service", service="draw")
        state = await page.until(lambda state: len(state["next"]) == 4)
        first = state["next"][0]
        assert (first["job_id"], first["band"], first["rank"]) == (late.id, "high", 1)
        assert "high priority" in first["why"]
        assert [each["rank"] for each in state["next"]] == [1, 2, 3, 4]
        assert (state["users"]["ada"]["waiting"], state["users"]["zed"]["running"]) == (2, 2)
        assert state["users"]["bob"]["fair_share"] == 0.25
        assert state["limits"] == {"effective": 2, "configured": 2}
        await board_site.app.set_limit("draw", 1)
        await page.until(lambda state: state["limits"] == {"effective": 1, "configured": 2, "override": 1})
        await board_site.agrees(page, view="service", service="draw")
        board_site.opened.set()
        await page.until(lambda state: not state["next"] and not state["slots"])
        await page.until(lambda state: sum(state["history"]["finished"]) == 6)
        await page.until(lambda state: sum(each.get("share", 0) for each in state["users"].values()) > 0.99)
        await board_site.agrees(page, view="service", service="draw")


async def test_the_next_jobs_have_no_gaps(board_site: DashboardSite) -> None:
    await board_site.fill()
    for number in range(30):
        for user_id in ("ada", "bob", "cy"):
            await board_site.app.submit("draw", user_id=user_id, priority=("low", "medium", "high")[number // 10])
    async with following(board_site.port) as page:
        await page.ask(view="service", service="draw")
        state = await page.until(lambda state: sum(state.get("waiting", {}).values()) == 90 and state["next"])
        state = await page.until(lambda state: len(state["next"]) == 20 and state["next"][0]["band"] == "high")
        assert [each["rank"] for each in state["next"]] == list(range(1, 21))
        assert {each["band"] for each in state["next"]} == {"high"}
        assert {each["user_id"] for each in state["next"][:3]} == {"ada", "bob", "cy"}


async def test_of_many_new_users_the_first_ones_are_next(board_site: DashboardSite) -> None:
    await board_site.fill()
    # Their names sort against the order of their arrival.
    came = [f"user {number:02}" for number in range(60, 0, -1)]
    for user_id in came:
        await board_site.app.submit("draw", user_id=user_id)
        await board_site.app.submit("draw", user_id=user_id)
    async with following(board_site.port) as page:
        await page.ask(view="service", service="draw")
        state = await page.until(lambda state: sum(state.get("waiting", {}).values()) == 120)
        state = await page.until(lambda state: [each["user_id"] for each in state["next"]] == came[:20])
        assert [each["rank"] for each in state["next"]] == list(range(1, 21))
        assert "new in the queue" in state["next"][0]["why"]
        assert "virtual time" not in state["next"][0]["why"]


async def test_a_job_behind_jobs_of_its_own_user_has_that_reason(board_site: DashboardSite) -> None:
    await board_site.fill()
    for _ in range(3):
        await board_site.app.submit("draw", user_id="ada")
    async with following(board_site.port) as page:
        await page.ask(view="service", service="draw")
        state = await page.until(lambda state: len(state["next"]) == 3)
        assert "after 2 of its user's own" in state["next"][2]["why"]
        assert "virtual time" in state["next"][2]["why"]


async def test_the_list_of_jobs_follows_their_states(board_site: DashboardSite) -> None:
    async with following(board_site.port) as page:
        assert (await page.ask(view="jobs"))["state"]["jobs"] == {}
        job = await board_site.app.submit("story", user_id="ada")
        await page.until(lambda state: state["jobs"].get(job.id, {}).get("status") == "RUNNING")
        others = [await board_site.app.submit("draw", user_id="bob") for _ in range(3)]
        await page.until(lambda state: state["jobs"].get(others[2].id, {}).get("position") == 2)
        await page.until(lambda state: state["counts"]["PENDING"] == 2)
        await board_site.agrees(page, view="jobs")

        await page.ask(view="jobs", user_id="bob", status="PENDING", limit=1)
        assert list(page.state["jobs"]) == [others[2].id]
        assert page.state["next_cursor"]
        board_site.opened.set()
        await page.until(lambda state: state["jobs"] == {})
        assert (await page.ask(view="jobs", since="2999-01-01T00:00:00Z"))["state"]["jobs"] == {}
        assert len((await page.ask(view="jobs", until="2999-01-01T00:00:00Z"))["state"]["jobs"]) == 4


async def test_a_job_is_a_waterfall_of_its_calls(board_site: DashboardSite) -> None:
    job = await board_site.app.submit("story", {"about": None}, user_id="ada")
    async with following(board_site.port) as page:
        await page.ask(view="job", job_id=job.id)
        state = await page.until(lambda state: state["job"]["status"] == "RUNNING" and len(state["timeline"]) == 2)
        first, drawn = state["timeline"]
        assert (first["service"], first["outcome"], first["step"]) == ("tell", "ok", 0)
        assert (drawn["service"], drawn["outcome"], drawn["attempt"]) == ("draw", "running", 1)
        assert first["waited_from"] <= first["started"] <= first["ended"] <= drawn["waited_from"] <= drawn["started"]
        assert "draw" in state["why"]["summary"]
        assert state["job"]["input_data"] == {"about": None}
        board_site.opened.set()
        await page.until(lambda state: state["job"]["status"] == "COMPLETED")
        # A null in data of users or services is kept.
        assert page.state["job"]["result"] == {"drawn": {"about": None}, "nothing": None}
        await board_site.agrees(page, view="job", job_id=job.id)
        await board_site.app.delete(job.id)
        while (message := await page.hear())["type"] != "error":
            pass
        assert message["code"] == "not_found"


async def test_dead_letters_are_grouped_by_error_pattern(board_site: DashboardSite) -> None:
    jobs = [await board_site.app.submit("tell", {"bad": number}) for number in (3, 41, 5)]
    async with following(board_site.port) as page:
        await page.ask(view="dead")
        state = await page.until(lambda state: state["total"] == 3)
        ((key, group),) = state["groups"].items()
        assert (group["code"], group["message"], group["count"]) == ("PERMANENT", "no story # of # s", 3)
        assert group["services"] == ["tell"]
        assert group["examples"][0] == jobs[2].id
        assert group["first"] <= group["last"]
        which: dict[str, Any] = {"error_code": group["code"], "error_like": group["message"]}
        assert (await board_site.app.preview_purge(**which)).count == 3
        assert await board_site.app.requeue(**which, dry_run=True) == 3
        assert [found.job_id for found in (await board_site.app.dead(**which, limit=2)).data] == [
            jobs[2].id,
            jobs[1].id,
        ]
        assert await board_site.app.purge(error_like="another story") == 0
        assert await board_site.app.purge(**which) == 3
        await page.until(lambda state: key not in state["groups"])
        await board_site.agrees(page, view="dead")


async def test_users_workers_batches_and_the_audit_are_followed(board_site: DashboardSite) -> None:
    await board_site.fill()
    for user_id in ("ada", "ada", "bob"):
        await board_site.app.submit("draw", user_id=user_id)
    async with following(board_site.port) as page:
        await page.ask(view="users")
        state = await page.until(lambda state: state["users"].get("bob", {}).get("waiting") == 1)
        assert [state["users"][user_id]["waiting"] for user_id in ("ada", "zed")] == [2, 0]
        assert (state["users"]["zed"]["running"], state["users"]["ada"]["weight"]) == (2, 1.0)
        await board_site.agrees(page, view="users")

        await page.ask(view="workers")
        state = await page.until(lambda state: any(each["slots"] for each in state["processes"].values()))
        ((name, worker),) = state["processes"].items()
        assert (worker["roles"], worker["alive"]) == (["api", "worker", "manager"], True)
        assert {slot["service"] for slot in worker["slots"].values()} == {"draw"}
        await board_site.agrees(page, view="workers")
        await board_site.app.drain_worker(name, who="root")
        await page.until(lambda state: state["processes"][name]["draining"])

        await page.ask(view="audit")
        state = await page.until(lambda state: len(state["rows"]) == 1)
        ((_, row),) = state["rows"].items()
        assert (row["who"], row["action"], row["target"]) == ("root", "worker.drain", name)
        await board_site.agrees(page, view="audit")

        batch = await board_site.app.submit_batch([{"feature_name": "tell"}, {"feature_name": "tell"}], user_id="ada")
        await page.ask(view="batches")
        await page.until(lambda state: batch.id in state["batches"])
        await page.ask(view="batch", batch_id=batch.id)
        state = await page.until(lambda state: len(state["items"]) == 2)
        assert state["batch"]["total"] == 2
        await board_site.agrees(page, view="batch", batch_id=batch.id)


async def test_a_gateway_only_process_shows_the_database(board_site: DashboardSite) -> None:
    """With Redis it sees the slots as well; slots in the memory of another process are unknown."""
    beside = DashboardSite(
        Fairlead(board_site.app.settings), 0, board_site.board, board_site.opened, board_site.entered
    )
    declared(beside)
    await board_site.fill()
    job = await board_site.app.submit("draw", user_id="ada")
    gateway = create_gateway(beside.app)
    async with (
        beside.app.running(Roles(worker=False, manager=False)),
        served(gateway) as port,
        following(port) as page,
    ):
        await page.ask(view="overview")
        await page.until(lambda state: state["health"].get("gateways") == 2)
        draw = (await page.until(lambda state: "oldest_since" in state["services"]["draw"]))["services"]["draw"]
        if board_site.app.settings.redis_url is None:
            assert "memory" in page.state["health"]["unknown"]
            assert "slots" not in draw
            assert "in_use" not in draw
        else:
            await page.until(lambda state: len(state["services"]["draw"].get("slots", ())) == 2)
            assert "unknown" not in page.state["health"]
        assert (await page.ask(view="service", service="draw"))["type"] == "state"
        assert (await page.ask(view="job", job_id=job.id))["state"]["job"]["status"] == "PENDING"
        assert (await page.ask(view="jobs"))["state"]["counts"]["PENDING"] == 1
        state = (await page.ask(view="workers"))["state"]
        assert sorted(len(each["roles"]) for each in state["processes"].values()) == [1, 3]
        board_site.opened.set()
        await job.result(timeout=30)
        # The history of the other process is in the database.
        await page.ask(view="overview")
        await page.until(lambda state: sum(state["history"]["finished"]) == 3)


# ---------------------------------------------------------------- the cost of views


async def test_a_view_is_computed_once_for_all_and_only_while_followed(small: DashboardSite) -> None:
    asked = 0
    overview = small.app.dashboard.overview

    async def counted() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return await overview()

    small.app.dashboard.overview = counted  # type: ignore[method-assign]
    async with following(small.port) as first, following(small.port) as second:
        await first.ask(view="overview")
        await second.ask(view="overview")
        assert small.board.followed == 1
        await small.app.submit("draw")
        for page in (first, second):
            await page.until(lambda state: state["services"]["draw"].get("in_use") == 1)
        assert second.messages[-1] == first.messages[-1]
        await second.ask(view="audit")
        assert small.board.followed == 2
    while small.board.followed:
        await asyncio.sleep(0.01)
    before = asked
    await asyncio.sleep(0.1)
    assert asked == before


async def test_nothing_is_sent_without_changes(small: DashboardSite) -> None:
    async with following(small.port) as page:
        await page.ask(view="dead")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(page.hear(), 0.3)


async def test_an_invalid_view_is_an_error_and_the_next_one_works(small: DashboardSite) -> None:
    async with following(small.port) as page:
        nonsense: dict[str, Any]
        for nonsense in (
            {},
            {"view": "everything"},
            {"view": ["jobs"]},
            {"view": "jobs", "limit": 201},
            {"view": "job"},
            {"view": "service"},
            {"view": "audit", "more": 1},
        ):
            assert (await page.ask(**nonsense))["code"] == "invalid_input"
        await page.client.send("[")
        assert (await page.hear())["code"] == "invalid_input"
        assert (await page.ask(view="jobs", since="yesterday"))["code"] == "invalid_input"
        assert (await page.ask(view="job", job_id=UNKNOWN))["code"] == "not_found"
        assert (await page.ask(view="batch", batch_id=UNKNOWN))["code"] == "not_found"
        assert (await page.ask(view="service", service="nothing"))["code"] == "not_found"
        assert (await page.ask(view="overview"))["type"] == "state"


async def test_an_error_ends_with_a_state_even_if_nothing_has_changed(small: DashboardSite) -> None:
    dead, away = small.app.dashboard.dead, False

    async def sometimes_away() -> dict[str, Any]:
        if away:
            raise Unavailable("the database does not respond")
        return await dead()

    small.app.dashboard.dead = sometimes_away  # type: ignore[method-assign]
    async with following(small.port) as page:
        state = await page.ask(view="dead")
        away = True
        assert (await page.hear())["type"] == "error"
        away = False
        recovered = await page.hear()
        assert recovered["type"] == "state"
        assert recovered["state"]["groups"] == state["state"]["groups"]


async def test_every_message_names_the_request_that_it_responds_to(small: DashboardSite) -> None:
    async with following(small.port) as page, following(small.port) as other:
        await page.client.send('{"view": "jobs", "limit": 100, "request": 1}')
        assert (await page.hear())["request"] == 1
        # The same content, requested differently.
        assert (await other.ask(view="jobs"))["view"] == {"view": "jobs"}
        await small.app.submit("tell")
        assert (await page.hear()) | {"patch": {}} == {"type": "patch", "request": 1, "patch": {}}
        await page.client.send('{"view": "job", "request": 2}')
        while (message := await page.hear())["request"] == 1:
            pass
        assert (message["type"], message["request"]) == ("error", 2)
        for wrong in (-1, "1", True, 1.5, 2**60):
            assert (await page.ask(view="audit", request=wrong))["code"] == "invalid_input"


async def test_a_stopping_gateway_closes_pages_with_1012(small: DashboardSite) -> None:
    async with following(small.port) as page:
        await page.ask(view="audit")
        small.app.hub.dismiss()
        await page.client.wait_closed()
        assert page.client.close_code == 1012


async def test_old_history_is_deleted(board_site: DashboardSite) -> None:
    store = board_site.app._runtime.store
    note = partial(MinuteStats, "elsewhere:1:ab", service="draw", finished=1)
    now = minute_of(await store.now())
    old = tuple(note(minute=minute) for minute in (now - KEPT_MINUTES - 5, now - KEPT_MINUTES + 5))
    await board_site.app._runtime.group_commit.write(RecordMinuteStats("elsewhere:1:ab", old, 0))
    assert len(await store.activity(0)) == 2
    await board_site.app.submit("tell")
    while {each.minute for each in await store.activity(0) if each.process == "elsewhere:1:ab"} != {old[1].minute}:
        await asyncio.sleep(0.02)
