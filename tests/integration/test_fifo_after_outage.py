"""A FIFO service runs its jobs in the order of acceptance, including those that could not be relayed at first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from fairlead import Call, Config, Fairlead, Unavailable
from fairlead.dispatch.port import Offer
from fairlead.engine import outbox_relay
from fairlead.engine.roles import Roles
from tests.integration.turn_apps import until_ready

PATIENCE = 60.0
GATEWAY = Roles(worker=False, manager=False)


class Site:
    """A process with all roles, further gateways, and the order in which jobs ran."""

    def __init__(self, urls: dict[str, str], stack: AsyncExitStack) -> None:
        self.urls = urls
        self.ran: list[str] = []
        self.may_run = asyncio.Event()
        self._stack = stack

    async def app(self, roles: Roles | None = None) -> Fairlead:
        app = Fairlead(Config(), **self.urls)

        @app.service(limit=1, order="fifo")
        async def one(call: Call) -> None:
            self.ran.append(call.params["name"])
            await self.may_run.wait()

        if roles is None:
            await self._stack.enter_async_context(app.running())
        else:
            await self._stack.enter_async_context(app.running(roles))
        await until_ready(app)
        return app


@pytest.fixture
async def site(distributed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """Disable the manager's outbox loop, by an interval longer than the test."""
    monkeypatch.setattr(outbox_relay, "LEFT_AFTER", 1000.0)
    async with AsyncExitStack() as stack:
        yield Site(distributed, stack)


@asynccontextmanager
async def cut_off(app: Fairlead) -> AsyncIterator[None]:
    """Make Redis refuse the offers of this process."""
    assert app._runtime.node is not None
    (queue,) = app._runtime.node.shards.values()
    taken = queue.dispatcher.offer

    async def refused(offers: Sequence[Offer]) -> int:
        raise Unavailable("Redis is away")

    queue.dispatcher.offer = refused  # type: ignore[method-assign]
    try:
        yield
    finally:
        queue.dispatcher.offer = taken  # type: ignore[method-assign]


async def submit(app: Fairlead, name: str, **more: Any) -> Any:
    return await app.submit("one", {"name": name}, **more)


async def test_jobs_a_process_could_not_relay_go_before_jobs_it_accepts_later(site: Site) -> None:
    app = await site.app()
    async with cut_off(app):
        jobs = [await submit(app, name) for name in "abc"]
    jobs.append(await submit(app, "d"))
    site.may_run.set()
    for job in jobs:
        await job.result(timeout=PATIENCE)
    assert site.ran == ["a", "b", "c", "d"]


async def test_jobs_one_gateway_could_not_relay_go_before_jobs_another_accepts_later(site: Site) -> None:
    app, gateway = await site.app(), await site.app(GATEWAY)
    async with cut_off(gateway):
        jobs = [await submit(gateway, "a"), await submit(app, "b")]
        site.may_run.set()
        for job in jobs:
            await app.wait(job.id, PATIENCE)
    assert site.ran == ["a", "b"]


async def test_jobs_of_a_callers_transaction_go_before_jobs_accepted_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_relay, "EVERY", 1000.0)
    app = await site.app()
    connection = await asyncpg.connect(site.urls["database_url"])
    jobs = [await submit(app, "a", connection=connection), await submit(app, "b")]
    await connection.close()
    site.may_run.set()
    for job in jobs:
        await app.wait(job.id, PATIENCE)
    assert site.ran == ["a", "b"]


async def test_a_callers_transaction_does_not_overtake_jobs_a_gateway_could_not_relay(site: Site) -> None:
    """The manager finds the row of the transaction at once, and that of the gateway only later."""
    app, gateway = await site.app(), await site.app(GATEWAY)
    connection = await asyncpg.connect(site.urls["database_url"])
    async with cut_off(gateway):
        jobs = [await submit(gateway, "a"), await submit(gateway, "b", connection=connection)]
        await connection.close()
        site.may_run.set()
        for job in jobs:
            await app.wait(job.id, PATIENCE)
    assert site.ran == ["a", "b"]


async def test_a_job_is_accepted_when_it_is_in_the_queue(site: Site) -> None:
    """After the response of one gateway a caller may use another, whose relay is faster."""
    app, gateway = await site.app(), await site.app(GATEWAY)
    assert gateway._runtime.node is not None
    (queue,) = gateway._runtime.node.shards.values()
    held = await submit(app, "first")
    job = await submit(gateway, "second")
    assert not queue.relay.behind
    site.may_run.set()
    await asyncio.gather(held.result(timeout=PATIENCE), app.wait(job.id, PATIENCE))
