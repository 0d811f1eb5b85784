"""Callers over HTTP that switch between gateways, on PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from fairlead import Config, Fairlead
from fairlead.engine.roles import Roles
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import TURNS, served
from tests.integration.test_gateway_turns import finished, looked, opened, waited

SERVICES = {**TURNS, "short": {"limit": 1, "lease_ttl": 4}}
Gateways = tuple[httpx2.AsyncClient, httpx2.AsyncClient]


@pytest.fixture
async def gateways(distributed: dict[str, str]) -> AsyncIterator[Gateways]:
    """Two gateways, each like its own process; the first one also runs a manager."""
    async with gateway(distributed, manager=True) as here, gateway(distributed) as there:
        yield here, there


@asynccontextmanager
async def gateway(distributed: dict[str, str], *, manager: bool = False) -> AsyncIterator[httpx2.AsyncClient]:
    app = Fairlead(Config.model_validate({"services": SERVICES}), **distributed)
    async with (
        app.running(Roles(worker=False, manager=manager)),
        served(create_gateway(app)) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        yield client


async def test_a_turn_moves_with_its_caller_between_gateways(gateways: Gateways) -> None:
    here, there = gateways
    holder = await opened(here, "ada")
    assert (await waited(there, holder))["status"] == "RUNNING"
    turn = await opened(there, "bob")
    assert (await waited(here, turn, seconds=1))["status"] == "PENDING"
    assert (await here.post(holder["links"]["renew_url"])).json()["status"] == "RUNNING"
    waiting = asyncio.create_task(waited(there, turn))
    assert (await finished(there, holder, result=1)).status_code == 200
    assert (await waiting)["status"] == "RUNNING"
    ended = await finished(here, turn, result=2)
    assert (ended.json()["status"], ended.json()["result"]) == ("COMPLETED", 2)


async def test_renewing_alternately_at_both_gateways_keeps_the_slot(gateways: Gateways) -> None:
    turn = await opened(gateways[0], "ada", service="short")
    held = await waited(gateways[0], turn)
    for number in range(12):  # twice the lease
        await asyncio.sleep(held["lease_ttl"] / 6)
        renewed = await gateways[number % 2].post(turn["links"]["renew_url"])
        assert renewed.status_code == 200, renewed.text
    assert (await finished(gateways[1], turn)).status_code == 200


async def test_a_caller_waiting_at_another_gateway_gets_the_slot(gateways: Gateways) -> None:
    here, there = gateways
    holder = await opened(here, "ada")
    await waited(here, holder)
    turn = await opened(there, "bob")
    waiting = asyncio.create_task(waited(there, turn))
    await here.post(holder["links"]["cancel_url"])
    assert (await waiting)["status"] == "RUNNING"
    assert (await looked(here, turn))["status"] == "RUNNING"


async def test_callers_of_a_stopping_gateway_continue_at_another(
    gateways: Gateways, distributed: dict[str, str]
) -> None:
    here, _ = gateways
    async with gateway(distributed) as stops:
        holder = await opened(stops, "ada")
        await waited(stops, holder)
        turn, behind = await opened(stops, "bob"), await opened(here, "eve")
    waiting = asyncio.create_task(waited(here, turn))
    later = asyncio.create_task(waited(here, behind))
    assert (await here.post(holder["links"]["renew_url"])).json()["status"] == "RUNNING"
    assert not waiting.done()
    assert not later.done()
    assert (await finished(here, holder, result=1)).status_code == 200
    assert (await waiting)["status"] == "RUNNING"
    await finished(here, turn)
    assert (await later)["status"] == "RUNNING"


async def test_a_slot_granted_while_the_caller_moves_is_taken(gateways: Gateways, distributed: dict[str, str]) -> None:
    here, _ = gateways
    async with gateway(distributed) as stops:
        holder = await opened(here, "ada")
        await waited(here, holder)
        turn = await opened(stops, "bob")
        behind = await opened(here, "eve")
    later = asyncio.create_task(waited(here, behind))  # so that a claim happens
    await finished(here, holder)
    assert (await waited(here, turn))["status"] == "RUNNING"
    await finished(here, turn)
    assert (await later)["status"] == "RUNNING"


async def test_moving_does_not_extend_the_wait_timeout(gateways: Gateways, distributed: dict[str, str]) -> None:
    here, there = gateways
    holder = await opened(here, "ada")
    await waited(here, holder)
    turn = await opened(here, "bob", wait_timeout=2)
    ended = await waited(there, turn)
    assert (ended["status"], ended["error"]["code"]) == ("FAILED", "RESOURCE_EXHAUSTED")
