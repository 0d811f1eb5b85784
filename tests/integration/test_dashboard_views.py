"""The dashboard's views over its WebSocket: a state, then patches that keep it as it is, on either pair of engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
import pytest

from fairlead import Call, Config, Fairlead, Permanent
from fairlead.domain.activity import KEPT_MINUTES
from fairlead.gateway.access import KEYLESS
from fairlead.gateway.app import create_gateway
from fairlead.gateway.dashboard import views
from fairlead.gateway.dashboard.channel import Board
from fairlead.gateway.dashboard.views import view_of
from fairlead.runtime.dashboard import board as boards
from fairlead.runtime.dashboard.sparing import Sparing
from fairlead.runtime.loops import activity
from fairlead.runtime.roles import Roles
from tests.integration.following import Following, following
from tests.integration.gateway_site import served

NOBODY = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at every few seconds is looked at all the time."""
    monkeypatch.setattr(boards, "Sparing", lambda ask, every: Sparing(ask, 0.01))
    monkeypatch.setattr(activity, "EVERY", 0.05)
    for name, kind in views.KINDS.items():
        monkeypatch.setitem(views.KINDS, name, replace(kind, every=0.02))


@dataclass
class Line:
    app: Fairlead
    port: int
    board: Board
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def fill(self) -> None:
        """Both slots of `draw` are taken from here on, by zed."""
        for _ in range(2):
            await self.app.submit("draw", user_id="zed")
        for _ in range(2):
            await self.entered.get()

    async def computed(self, **view: Any) -> dict[str, Any]:
        """Anew, for nobody else."""
        found = await view_of(view, KEYLESS).look(self.app)
        return dict(orjson.loads(orjson.dumps(found, default=str)))

    async def agrees(self, page: Following, **view: Any) -> None:
        """Sooner or later the page shows what is: leases are renewed, and processes say that they are there."""
        while True:
            anew = await self.computed(**view)
            if {name: value for name, value in page.state.items() if name != "now"} == anew:
                return
            await page.hear()


def declared(line: Line) -> None:
    app = line.app

    @app.service(limit=2)
    async def draw(call: Call) -> dict[str, Any]:
        line.entered.put_nowait(call.job_id)
        await line.opened.wait()
        return {"drawn": call.params, "nothing": None}

    @app.service(limit=5)
    async def tell(call: Call) -> dict[str, Any]:
        if call.params.get("bad"):
            raise Permanent(f"no story {call.params['bad']} of 12.5 s")
        return {"told": True}

    app.pipeline("story", ["tell", "draw"])


@asynccontextmanager
async def _running(engines: dict[str, str]) -> AsyncIterator[Line]:
    app = Fairlead(Config.model_validate({}), **engines)
    gateway = create_gateway(app)
    line = Line(app, 0, gateway.state.board)
    declared(line)
    async with app.running(), served(gateway) as port:
        line.port = port
        yield line


@pytest.fixture
async def line(engines: dict[str, str]) -> AsyncIterator[Line]:
    async with _running(engines) as line:
        yield line


@pytest.fixture
async def small(embedded: dict[str, str]) -> AsyncIterator[Line]:
    """For what is the same whatever the engines."""
    async with _running(embedded) as line:
        yield line


async def test_the_overview_follows_slots_and_lines(line: Line) -> None:
    async with following(line.port) as page:
        await page.ask(view="overview")
        await page.until(lambda state: state["services"]["draw"].get("slots") == {})  # known, once the line is built
        jobs = [await line.app.submit("draw", user_id=f"u{n}") for n in range(4)]
        await page.until(lambda state: state["services"]["draw"]["waiting"]["medium"] == 2)
        draw = page.state["services"]["draw"]
        assert (draw["in_use"], draw["limit"], draw["limit_source"]) == (2, 2, "config")
        assert {slot["job_id"] for slot in draw["slots"].values()} == {await line.entered.get() for _ in range(2)}
        assert {slot["feature_name"] for slot in draw["slots"].values()} == {"draw"}
        await page.until(lambda state: "oldest_since" in state["services"]["draw"])
        await line.agrees(page, view="overview")

        await line.app.set_limit("draw", 3)
        await line.app.pause("tell")
        await page.until(lambda state: state["services"]["draw"]["in_use"] == 3 and state["services"]["tell"]["paused"])
        assert page.state["services"]["draw"]["limit_source"] == "override"

        line.opened.set()
        for job in jobs:
            await job.result(timeout=30)
        await page.until(lambda state: sum(state["history"]["finished"]) == 4)
        await page.until(lambda state: not state["services"]["draw"]["slots"])
        assert "wait_p50" in page.state["services"]["draw"]
        await line.agrees(page, view="overview")


async def test_the_overview_says_what_is_wrong_and_who_is_there(line: Line) -> None:
    async with following(line.port) as page:
        await page.ask(view="overview")
        health = (await page.until(lambda state: state["health"].get("well")))["health"]
        assert health["findings"]["no-keys"]["level"] == "note"
        assert (health["workers"], health["managers"], health["gateways"]) == (1, 1, 1)
        assert "unknown" not in health
        await line.app.submit("tell", {"bad": 1})
        await page.until(lambda state: state["failures"] == {"PERMANENT": 1})


async def test_a_service_shows_who_goes_next_and_whose_slots_they_are(line: Line) -> None:
    await line.fill()
    for user_id in ("ada", "ada", "bob"):
        await line.app.submit("draw", user_id=user_id)
    late = await line.app.submit("draw", user_id="dee", priority="high")
    async with following(line.port) as page:
        await page.ask(view="service", service="draw")
        state = await page.until(lambda state: len(state["next"]) == 4)
        first = state["next"][0]
        assert (first["job_id"], first["band"], first["rank"]) == (late.id, "high", 1)
        assert "high priority" in first["why"]
        assert [each["rank"] for each in state["next"]] == [1, 2, 3, 4]
        assert (state["users"]["ada"]["waiting"], state["users"]["zed"]["running"]) == (2, 2)
        assert state["users"]["bob"]["fair_share"] == 0.25
        assert state["limits"] == {"effective": 2, "configured": 2}
        await line.app.set_limit("draw", 1)
        await page.until(lambda state: state["limits"] == {"effective": 1, "configured": 2, "override": 1})
        await line.agrees(page, view="service", service="draw")
        line.opened.set()
        await page.until(lambda state: not state["next"] and not state["slots"])
        await page.until(lambda state: sum(state["history"]["finished"]) == 6)
        await page.until(lambda state: sum(each.get("share", 0) for each in state["users"].values()) > 0.99)
        await line.agrees(page, view="service", service="draw")


async def test_those_who_go_next_are_told_without_a_gap(line: Line) -> None:
    await line.fill()
    for number in range(30):
        for user_id in ("ada", "bob", "cy"):
            await line.app.submit("draw", user_id=user_id, priority=("low", "medium", "high")[number // 10])
    async with following(line.port) as page:
        await page.ask(view="service", service="draw")
        state = await page.until(lambda state: sum(state.get("waiting", {}).values()) == 90 and state["next"])
        state = await page.until(lambda state: len(state["next"]) == 20 and state["next"][0]["band"] == "high")
        assert [each["rank"] for each in state["next"]] == list(range(1, 21))
        assert {each["band"] for each in state["next"]} == {"high"}
        assert {each["user_id"] for each in state["next"][:3]} == {"ada", "bob", "cy"}


async def test_of_many_who_are_new_those_who_came_first_are_told(line: Line) -> None:
    await line.fill()
    # Their names sort against the order in which they come.
    came = [f"user {number:02}" for number in range(60, 0, -1)]
    for user_id in came:
        await line.app.submit("draw", user_id=user_id)
        await line.app.submit("draw", user_id=user_id)
    async with following(line.port) as page:
        await page.ask(view="service", service="draw")
        state = await page.until(lambda state: sum(state.get("waiting", {}).values()) == 120)
        state = await page.until(lambda state: [each["user_id"] for each in state["next"]] == came[:20])
        assert [each["rank"] for each in state["next"]] == list(range(1, 21))
        assert "new in line" in state["next"][0]["why"]
        assert "virtual time" not in state["next"][0]["why"]


async def test_a_job_behind_others_of_its_own_user_says_so(line: Line) -> None:
    await line.fill()
    for _ in range(3):
        await line.app.submit("draw", user_id="ada")
    async with following(line.port) as page:
        await page.ask(view="service", service="draw")
        state = await page.until(lambda state: len(state["next"]) == 3)
        assert "after 2 of its user's own" in state["next"][2]["why"]
        assert "virtual time" in state["next"][2]["why"]


async def test_jobs_follow_what_becomes_of_them(line: Line) -> None:
    async with following(line.port) as page:
        assert (await page.ask(view="jobs"))["state"]["jobs"] == {}
        told = await line.app.submit("story", user_id="ada")
        await page.until(lambda state: state["jobs"].get(told.id, {}).get("status") == "RUNNING")
        others = [await line.app.submit("draw", user_id="bob") for _ in range(3)]
        await page.until(lambda state: state["jobs"].get(others[2].id, {}).get("position") == 2)
        await page.until(lambda state: state["counts"]["PENDING"] == 2)
        await line.agrees(page, view="jobs")

        await page.ask(view="jobs", user_id="bob", status="PENDING", limit=1)
        assert list(page.state["jobs"]) == [others[2].id]
        assert page.state["next_cursor"]
        line.opened.set()
        await page.until(lambda state: state["jobs"] == {})
        assert (await page.ask(view="jobs", since="2999-01-01T00:00:00Z"))["state"]["jobs"] == {}
        assert len((await page.ask(view="jobs", until="2999-01-01T00:00:00Z"))["state"]["jobs"]) == 4


async def test_a_job_is_a_waterfall_of_its_calls(line: Line) -> None:
    job = await line.app.submit("story", {"about": None}, user_id="ada")
    async with following(line.port) as page:
        await page.ask(view="job", job_id=job.id)
        state = await page.until(lambda state: state["job"]["status"] == "RUNNING" and len(state["timeline"]) == 2)
        told, drawn = state["timeline"]
        assert (told["service"], told["outcome"], told["step"]) == ("tell", "ok", 0)
        assert (drawn["service"], drawn["outcome"], drawn["attempt"]) == ("draw", "running", 1)
        assert told["waited_from"] <= told["started"] <= told["ended"] <= drawn["waited_from"] <= drawn["started"]
        assert "draw" in state["why"]["summary"]
        assert state["job"]["input_data"] == {"about": None}
        line.opened.set()
        await page.until(lambda state: state["job"]["status"] == "COMPLETED")
        # A null that a user or a service wrote is shown as it is.
        assert page.state["job"]["result"] == {"drawn": {"about": None}, "nothing": None}
        await line.agrees(page, view="job", job_id=job.id)
        await line.app.delete(job.id)
        while (message := await page.hear())["type"] != "error":
            pass
        assert message["code"] == "not_found"


async def test_dead_letters_are_grouped_by_what_their_errors_have_in_common(line: Line) -> None:
    jobs = [await line.app.submit("tell", {"bad": number}) for number in (3, 41, 5)]
    async with following(line.port) as page:
        await page.ask(view="dead")
        state = await page.until(lambda state: state["total"] == 3)
        ((key, group),) = state["groups"].items()
        assert (group["code"], group["message"], group["count"]) == ("PERMANENT", "no story # of # s", 3)
        assert group["services"] == ["tell"]
        assert group["examples"][0] == jobs[2].id
        assert group["first"] <= group["last"]
        which: dict[str, Any] = {"error_code": group["code"], "error_like": group["message"]}
        assert (await line.app.preview_purge(**which)).count == 3
        assert await line.app.requeue(**which, dry_run=True) == 3
        assert [found.job_id for found in (await line.app.dead(**which, limit=2)).data] == [jobs[2].id, jobs[1].id]
        assert await line.app.purge(error_like="another story") == 0
        assert await line.app.purge(**which) == 3
        await page.until(lambda state: key not in state["groups"])
        await line.agrees(page, view="dead")


async def test_users_workers_batches_and_the_audit_are_followed(line: Line) -> None:
    await line.fill()
    for user_id in ("ada", "ada", "bob"):
        await line.app.submit("draw", user_id=user_id)
    async with following(line.port) as page:
        await page.ask(view="users")
        state = await page.until(lambda state: state["users"].get("bob", {}).get("waiting") == 1)
        assert [state["users"][user_id]["waiting"] for user_id in ("ada", "zed")] == [2, 0]
        assert (state["users"]["zed"]["running"], state["users"]["ada"]["weight"]) == (2, 1.0)
        await line.agrees(page, view="users")

        await page.ask(view="workers")
        state = await page.until(lambda state: any(each["slots"] for each in state["processes"].values()))
        ((name, worker),) = state["processes"].items()
        assert (worker["roles"], worker["alive"]) == (["api", "worker", "manager"], True)
        assert {slot["service"] for slot in worker["slots"].values()} == {"draw"}
        await line.agrees(page, view="workers")
        await line.app.drain_worker(name, who="root")
        await page.until(lambda state: state["processes"][name]["draining"])

        await page.ask(view="audit")
        state = await page.until(lambda state: len(state["rows"]) == 1)
        ((_, row),) = state["rows"].items()
        assert (row["who"], row["action"], row["target"]) == ("root", "worker.drain", name)
        await line.agrees(page, view="audit")

        batch = await line.app.submit_batch([{"feature_name": "tell"}, {"feature_name": "tell"}], user_id="ada")
        await page.ask(view="batches")
        await page.until(lambda state: batch.id in state["batches"])
        await page.ask(view="batch", batch_id=batch.id)
        state = await page.until(lambda state: len(state["items"]) == 2)
        assert state["batch"]["total"] == 2
        await line.agrees(page, view="batch", batch_id=batch.id)


async def test_a_gateway_beside_the_line_shows_what_the_truth_knows(line: Line) -> None:
    """In Redis it sees the slots as well; those in another process's memory it says that it does not know."""
    beside = Line(Fairlead(line.app.settings), 0, line.board, line.opened, line.entered)
    declared(beside)
    await line.fill()
    job = await line.app.submit("draw", user_id="ada")
    gateway = create_gateway(beside.app)
    async with (
        beside.app.running(Roles(worker=False, manager=False)),
        served(gateway) as port,
        following(port) as page,
    ):
        await page.ask(view="overview")
        await page.until(lambda state: state["health"].get("gateways") == 2)
        draw = (await page.until(lambda state: "oldest_since" in state["services"]["draw"]))["services"]["draw"]
        if line.app.settings.redis_url is None:
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
        line.opened.set()
        await job.result(timeout=30)
        # What the other process did is in the truth, and so in the history.
        await page.ask(view="overview")
        await page.until(lambda state: sum(state["history"]["finished"]) == 3)


# ---------------------------------------------------------------- who pays for it


async def test_a_view_is_looked_at_once_for_all_and_only_while_it_is_followed(small: Line) -> None:
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


async def test_nothing_is_sent_while_nothing_changes(small: Line) -> None:
    async with following(small.port) as page:
        await page.ask(view="dead")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(page.hear(), 0.3)


async def test_whoever_asks_for_nonsense_is_told_and_may_ask_again(small: Line) -> None:
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
        assert (await page.ask(view="job", job_id=NOBODY))["code"] == "not_found"
        assert (await page.ask(view="batch", batch_id=NOBODY))["code"] == "not_found"
        assert (await page.ask(view="service", service="nothing"))["code"] == "not_found"
        assert (await page.ask(view="overview"))["type"] == "state"


async def test_pages_are_told_to_come_back_when_the_gateway_stops(small: Line) -> None:
    async with following(small.port) as page:
        await page.ask(view="audit")
        small.app.hub.dismiss()
        await page.client.wait_closed()
        assert page.client.close_code == 1012


async def test_what_is_too_old_for_the_history_goes(line: Line) -> None:
    store, _ = line.app._opened()
    note = partial(activity.Activity, "elsewhere:1:ab", service="draw", finished=1)
    now = activity.minute_of(await store.now())
    old = tuple(note(minute=minute) for minute in (now - KEPT_MINUTES - 5, now - KEPT_MINUTES + 5))
    await line.app._journal.write(activity.NoteActivity("elsewhere:1:ab", old, 0))  # type: ignore[union-attr]
    assert len(await store.activity(0)) == 2
    await line.app.submit("tell")
    while {each.minute for each in await store.activity(0) if each.process == "elsewhere:1:ab"} != {old[1].minute}:
        await asyncio.sleep(0.02)
