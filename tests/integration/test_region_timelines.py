"""A region that hangs, second by second, in virtual time: it costs its own timeout, and the others nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead import Config, Fairlead
from fairlead.app import event_stream
from fairlead.config import Settings
from fairlead.domain.retry import TIMEOUT
from fairlead.engine import estimate_accuracy, outbox_relay, rebuild, registry
from fairlead.engine.loops import sync_rules, timers
from fairlead.executors import http
from fairlead.executors.port import Call, Success
from fairlead.testing.virtual_time import EPOCH, VirtualClock, VirtualHeartbeat, in_virtual_time

TIMEOUT_S, CALL_S, REST_S = 120.0, 10.0, 300.0


class Regions:
    """What the endpoints see: the time and region of each call. `us` hangs until `repaired` is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str]] = []
        self.repaired = False

    async def execute(self, call: Call) -> Success:
        assert call.region is not None
        self.calls.append((asyncio.get_running_loop().time(), call.region))
        await asyncio.sleep(CALL_S if call.region != "us" or self.repaired else 10 * TIMEOUT_S)
        return Success("{}")

    def of(self, region: str) -> list[float]:
        return [at for at, where in self.calls if where == region]


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> Regions:
    seen = Regions()
    monkeypatch.setattr(http.HttpExecutor, "execute", lambda self, call: seen.execute(call))
    # These loops poll for the work of other processes, of which there are none.
    monkeypatch.setattr(timers, "LOOK_EVERY", 60.0)
    monkeypatch.setattr(event_stream, "POLL_EVERY", 1e9)
    monkeypatch.setattr(registry, "NEIGHBOURS_EVERY", 60.0)
    for loop in (outbox_relay, sync_rules, rebuild, estimate_accuracy):
        monkeypatch.setattr(loop, "EVERY", 60.0)
    return seen


def app_in(folder: Path) -> Fairlead:
    gpu = {
        "limit": 9,
        "timeout": TIMEOUT_S,
        "max_attempts": 9,
        "breaker": {"failures": 1, "rest": REST_S},
        "regions": {name: {"url": f"http://{name}:9000/", "limit": 1} for name in ("eu", "us")},
    }
    config = Config.model_validate({"services": {"gpu": gpu}})
    app = Fairlead(Settings(config, f"sqlite:///{folder}/regions.db?synchronous=normal"), clock=VirtualClock())
    app._runtime.heartbeat = VirtualHeartbeat
    return app


@in_virtual_time
async def test_a_hung_region_costs_one_timeout_and_the_others_nothing(tmp_path: Path, regions: Regions) -> None:
    async with app_in(tmp_path).running() as app:
        hung = await app.submit("gpu", region="us")
        jobs = [await app.submit("gpu", user_id=f"user {number}") for number in range(20)]
        for job in jobs:
            await job.result(10_000)
        began = regions.of("eu")
        shown = await hung.get()

    # One after the other without a gap, even while the job of the hung call is backing off.
    assert [round(later - earlier, 3) for earlier, later in pairwise(began)] == [CALL_S] * 20
    assert len(regions.of("us")) == 1
    assert shown.attempts is not None
    assert [each["error"]["code"] for each in shown.attempts] == [TIMEOUT]
    # Its retry went first, to the slot that was free first after the timeout and the backoff of 2 s.
    assert shown.finished_at is not None
    assert round(shown.finished_at.timestamp() - EPOCH - regions.of("us")[0]) in (140, 141)


@in_virtual_time
async def test_a_region_that_recovers_is_probed_by_one_call_after_its_rest(tmp_path: Path, regions: Regions) -> None:
    async with app_in(tmp_path).running() as app:
        first = await app.submit("gpu", region="us")
        await first.result(10_000)
        regions.repaired = True
        strict = [await app.submit("gpu", allowed_regions=["us"]) for _ in range(3)]
        for job in strict:
            await job.result(10_000)
        hung, *later = regions.of("us")

    # A worker claims once a second even without a wakeup.
    rested = later[0] - hung - TIMEOUT_S
    assert REST_S <= rested <= REST_S + 1.1
    assert [round(at - later[0], 3) for at in later] == [0, CALL_S, 2 * CALL_S]
