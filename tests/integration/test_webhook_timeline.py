"""Deliveries over days, in virtual time: retries, order, Retry-After, disabled endpoints, and leaders that die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from fairlead.domain import transitions
from fairlead.domain.config_webhooks import WebhooksConfig
from fairlead.domain.job import Job
from fairlead.domain.webhooks import COMPLETED, ENDPOINTS_ONLY, STARTED, DeliveryState, Endpoint, JobWebhook
from fairlead.engine.loop_runner import LoopRunner
from fairlead.engine.parts import RunningNode
from fairlead.engine.webhooks import delivery_loop
from fairlead.engine.webhooks.delivery_loop import WebhooksLoop
from fairlead.engine.webhooks.port import Sent
from fairlead.store.group_commit import GroupCommit
from fairlead.store.sqlite import SqliteStore
from fairlead.store.webhooks import DeliveryFilter, RecordEvent, SaveEndpoint
from fairlead.testing.virtual_time import EPOCH, VirtualClock, in_virtual_time

HOUR = 3600.0
DAY = 24 * HOUR
SECRET = "whsec_" + "A" * 43 + "="
SCHEDULE = [0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0]
EVERYTHING = DeliveryFilter()


@dataclass
class FakeReceivers:
    """Answers requests, and records when each came: (seconds, host, id, body)."""

    answer: Callable[[str, float], Sent]
    clock: VirtualClock
    got: list[tuple[float, str, str, str]] = field(default_factory=list)
    takes: float = 0.0
    """Seconds until a request fails; if `always`, also until one succeeds."""
    always: bool = False

    async def send(self, url: str, body: str, headers: Mapping[str, str]) -> Sent:
        now = self.clock.monotonic()
        self.got.append((now, url, headers["webhook-id"], body))
        sent = self.answer(url, now)
        await asyncio.sleep(0.0 if sent.accepted and not self.always else self.takes)
        return sent

    async def close(self) -> None:
        pass


@dataclass
class Site:
    store: SqliteStore
    group_commit: GroupCommit
    clock: VirtualClock
    receivers: FakeReceivers
    _numbers: int = 0

    async def job(self, webhook: JobWebhook, user_id: str = "ada") -> Job:
        """A job that has just started."""
        self._numbers += 1
        new = Job(f"job-{self._numbers}", "draw", user_id, ("draw",), webhook=webhook)
        await self.group_commit.write(transitions.submit(new, "{}", now=self.clock.now(), waits={}))
        stored = (await self.store.get_jobs([new.id]))[new.id]
        await self.group_commit.write(RecordEvent(stored.id, stored.run, STARTED, webhook, {"status": "RUNNING"}))
        return stored

    async def cancel(self, job: Job) -> None:
        await self.group_commit.write(transitions.cancel(job, now=self.clock.now()))

    @asynccontextmanager
    async def leading(self, **config: object) -> AsyncIterator[WebhooksLoop]:
        loop = WebhooksLoop(
            WebhooksConfig.model_validate(config), self.store, self.group_commit, self.clock, lambda: self.receivers
        )
        task = asyncio.create_task(LoopRunner([loop], self.clock).run())
        try:
            yield loop
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def opened(folder: Path, answer: Callable[[str, float], Sent]) -> AsyncIterator[Site]:
    clock = VirtualClock()
    store = SqliteStore(str(folder / "jobs.db"), clock=clock.now, synchronous="OFF")
    await store.open()
    group_commit = GroupCommit(store, RunningNode())
    group_commit.start()
    try:
        yield Site(store, group_commit, clock, FakeReceivers(answer, clock))
    finally:
        await group_commit.close()
        await store.close()


@pytest.fixture
def few_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days of looking twice a second would take minutes."""
    monkeypatch.setattr(delivery_loop, "LOOK_EVERY", 60.0)


@pytest.mark.usefixtures("few_ticks")
@in_virtual_time
async def test_a_receiver_that_is_down_for_three_days_gets_everything_in_order(tmp_path: Path) -> None:
    def answer(url: str, now: float) -> Sent:
        return Sent(None, "refused") if "down" in url and now < 3 * DAY else Sent(200)

    async with opened(tmp_path, answer) as site, site.leading():
        events = (STARTED, "job.cancelled")
        down = [await site.job(JobWebhook("https://down.example/x", events)) for _ in range(3)]
        well = await site.job(JobWebhook("https://well.example/x", events))
        for job in (*down, well):
            await site.cancel(job)
        await asyncio.sleep(130)
        assert [each[1] for each in site.receivers.got if "well" in each[1]] == ["https://well.example/x"] * 2
        await asyncio.sleep(80 * HOUR)
        deliveries = await site.store.deliveries(EVERYTHING, before=None, limit=100)
        assert {each.state for each in deliveries} == {DeliveryState.DELIVERED}
        for job in down:
            of_job = [each for each in site.receivers.got if job.id in each[2]]
            first, last = of_job[0], of_job[-1]
            started = [each for each in of_job if each[2] == first[2]]
            assert {each[3] for each in started} == {first[3]}, "every attempt has the same body"
            assert len(started) == 10, "the tenth attempt came after three days"
            moments = [each[0] for each in started]
            steps = [later - earlier for earlier, later in pairwise(moments)]
            for step, delay in zip(steps, SCHEDULE[1:], strict=True):
                assert abs(step - delay) <= 0.12 * delay + 70
            assert [each[2] for each in of_job[-2:]] == [first[2], last[2]]
            assert last[2] != first[2], "the end is sent after the start, and at once"
            assert last[0] - of_job[-2][0] < 130


@pytest.mark.usefixtures("few_ticks")
@in_virtual_time
async def test_an_endpoint_that_fails_for_three_days_is_disabled(tmp_path: Path) -> None:
    def answer(url: str, now: float) -> Sent:
        return Sent(503, "no") if "mine" in url else Sent(204)

    async with opened(tmp_path, answer) as site, site.leading():
        for name, user_id, events in (
            ("mine", "ada", (COMPLETED, "job.cancelled")),
            ("ops", None, ("endpoint.disabled",)),
        ):
            endpoint = Endpoint(name, f"https://{name}.example", user_id, events, EPOCH, secrets=((SECRET, None),))
            await site.group_commit.write(SaveEndpoint(endpoint))
        await site.cancel(await site.job(ENDPOINTS_ONLY))
        await asyncio.sleep(2.5 * DAY)
        assert (await site.store.endpoints("ada"))[0].failing_since is not None
        await asyncio.sleep(DAY)
        (mine,) = await site.store.endpoints("ada")
        assert mine.disabled_reason is not None
        assert "503" in mine.disabled_reason
        ((_, _, _, body),) = [each for each in site.receivers.got if "ops" in each[1]]
        assert '"endpoint_id":"mine"' in body
        sent = len(site.receivers.got)
        await site.cancel(await site.job(ENDPOINTS_ONLY))
        await asyncio.sleep(DAY)
        assert len(site.receivers.got) == sent


@in_virtual_time
async def test_retry_after_is_respected_and_410_is_final(tmp_path: Path) -> None:
    def answer(url: str, now: float) -> Sent:
        if "gone" in url:
            return Sent(410)
        return Sent(429, retry_after=900.0) if now < 600 else Sent(200)

    async with opened(tmp_path, answer) as site, site.leading():
        for host in ("busy", "gone"):
            await site.cancel(await site.job(JobWebhook(f"https://{host}.example/")))
        await asyncio.sleep(2 * HOUR)
        moments = [each[0] for each in site.receivers.got if "busy" in each[1]]
        assert len(moments) == 2
        assert 900 <= moments[1] - moments[0] <= 940
        assert len([each for each in site.receivers.got if "gone" in each[1]]) == 1
        states = {each.receiver: each.state for each in await site.store.deliveries(EVERYTHING, before=None, limit=9)}
        assert states["https://gone.example"] is DeliveryState.FAILED


@in_virtual_time
async def test_what_a_leader_was_sending_is_sent_by_the_next_with_the_same_id(tmp_path: Path) -> None:
    async with opened(tmp_path, lambda url, now: Sent(200)) as site:
        site.receivers.takes, site.receivers.always = 10.0, True
        await site.cancel(await site.job(JobWebhook("https://slow.example/")))
        async with site.leading():
            await asyncio.sleep(5)  # and is killed while it sends
        async with site.leading():
            await asyncio.sleep(60)
        first, second = site.receivers.got
        assert first[2:] == second[2:]
        (delivery,) = await site.store.deliveries(EVERYTHING, before=None, limit=9)
        assert (delivery.state, delivery.attempts) == (DeliveryState.DELIVERED, 1)


@in_virtual_time
async def test_failing_receivers_leave_slots_to_the_others(tmp_path: Path) -> None:
    async with opened(tmp_path, lambda url, now: Sent(None, "down") if "down" in url else Sent(200)) as site:
        for host in range(30):
            for _ in range(3):
                await site.cancel(await site.job(JobWebhook(f"https://down-{host}.example/")))
        site.receivers.takes = 20.0
        async with site.leading(concurrency=8):
            await asyncio.sleep(100)
            began = site.clock.monotonic()
            for _ in range(4):
                await site.cancel(await site.job(JobWebhook("https://well.example/")))
            await asyncio.sleep(60)
            well = [each[0] - began for each in site.receivers.got if "well" in each[1]]
            assert len(well) == 4
            assert max(well) <= 25, "as soon as one of the requests that hang has ended"
