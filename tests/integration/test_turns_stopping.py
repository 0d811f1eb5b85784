"""Turns of an app that stops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead import Fairlead, TurnEnded, TurnLost, Unavailable
from fairlead.domain.transitions import Submit
from tests.integration.turn_apps import ENOUGH, MODELS, Waiters, running_app, turns_of, until, until_ready


async def test_a_stopping_app_leaves_no_turn_open(engines: dict[str, str]) -> None:
    app = Fairlead(MODELS, **engines)
    waiters = Waiters(app)
    async with app.running():
        await until_ready(app)
        await waiters.join("a")
        await waiters.join("b")
        await waiters.has("a")
    with pytest.raises(TurnLost):
        await waiters.tasks["a"]
    with pytest.raises((TurnEnded, Unavailable)):
        await waiters.tasks["b"]
    async with running_app(MODELS, engines) as again:
        assert [turn.error["code"] for turn in await turns_of(again)] == ["HOLDER_DIED", "WAITER_GONE"]
        async with again.turn("flux", "next"):
            pass


async def test_a_turn_that_is_added_while_the_app_stops_ends_too(engines: dict[str, str]) -> None:
    app = Fairlead(MODELS, **engines)
    waiters, closing = Waiters(app), asyncio.Event()
    async with app.running():
        await until_ready(app)
        await waiters.join("a")
        await waiters.has("a")
        group_commit, close = app._runtime.group_commit, app._turns.close
        write = group_commit.write

        async def write_slowly(command: Any) -> Any:
            """The turn is committed, and its caller learns of it once the app is stopping."""
            outcome = await write(command)
            if isinstance(command, Submit):
                await closing.wait()
            return outcome

        async def close_meanwhile() -> None:
            closing.set()
            await close()

        group_commit.write, app._turns.close = write_slowly, close_meanwhile  # type: ignore[method-assign]
        await waiters.join("b")
    async with asyncio.timeout(ENOUGH):
        with pytest.raises((TurnEnded, Unavailable)):
            await waiters.tasks["b"]
    with pytest.raises(TurnLost):
        await waiters.tasks["a"]
    async with running_app(MODELS, engines) as again:
        assert [turn.status.finished for turn in await turns_of(again)] == [True, True]


async def test_a_wait_ends_with_the_app_if_its_turn_cannot_be_ended(
    engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(*_: object) -> None:
        raise Unavailable("no database")

    app = Fairlead(MODELS, **engines)
    waiters = Waiters(app)
    async with app.running():
        await until_ready(app)
        await waiters.join("a")
        await waiters.has("a")
        await waiters.join("b")
        await until(lambda: waiters.positions["b"])
        monkeypatch.setattr(app._runtime.writer, "record_each", unreachable)
    async with asyncio.timeout(ENOUGH):
        with pytest.raises(Unavailable):
            await waiters.tasks["b"]
    waiters.tasks["a"].cancel()
    await asyncio.wait([waiters.tasks["a"]])
