"""Connections to PostgreSQL that break before the reply to a commit arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from fairlead.store.port import Busy, Committed, Transition
from fairlead.store.postgres import PostgresStore
from fairlead.store.postgres.queries import WRITES


async def committed_once_noticed(store: PostgresStore, batch: Sequence[Transition]) -> Committed:
    """Commit again after a lost reply, as soon as the server has ended the session of the first attempt."""
    while True:
        try:
            return await store.commit(batch)
        except Busy as busy:
            if "not yet noticed" not in str(busy):
                raise
        await asyncio.sleep(0.01)


def lose_reply(monkeypatch: pytest.MonkeyPatch, *, happened: bool, times: int = 99) -> None:
    """The next commits end with a broken connection, after or before the server has executed them."""
    execute, fetch = asyncpg.Connection.execute, asyncpg.Connection.fetch
    statements = ("submit", "submit_together", "submit_keyed", "submit_started", "start_single", "complete")
    alone = {WRITES[name] for name in statements}
    left = [times]

    async def losing_statement(self: Any, query: str, *args: Any, **options: Any) -> Any:
        if query not in alone or not left[0] or self.is_in_transaction():
            return await fetch(self, query, *args, **options)
        left[0] -= 1
        if happened:
            await fetch(self, query, *args, **options)
        raise ConnectionResetError("the reply was lost")

    async def losing(self: Any, query: str, *args: Any, **options: Any) -> Any:
        if query != "COMMIT" or not left[0]:
            return await execute(self, query, *args, **options)
        left[0] -= 1
        if happened:
            await execute(self, query)
        else:
            await execute(self, "ROLLBACK")
        raise ConnectionResetError("the reply was lost")

    monkeypatch.setattr(asyncpg.Connection, "execute", losing)
    monkeypatch.setattr(asyncpg.Connection, "fetch", losing_statement)
