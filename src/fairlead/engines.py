"""Which engine stands behind an address: the only place that names concrete stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fairlead.config import sqlite_options
from fairlead.domain.transitions import Submit
from fairlead.errors import ConfigError, InvalidInput
from fairlead.store.port import Accepted, Store
from fairlead.store.sqlite import SqliteStore

POSTGRES = ("postgresql://", "postgres://")


def store_of(database_url: str, clock: Callable[[], float]) -> Store:
    """Raises ConfigError for an address that is no database of ours, and for an engine that is not installed."""
    if database_url.startswith(POSTGRES):
        try:
            from fairlead.store.postgres import PostgresStore
        except ImportError:
            raise ConfigError(["DATABASE_URL: PostgreSQL needs its driver: pip install 'fairlead[postgres]'"]) from None
        # What is stored as "now" is the server's own clock.
        return PostgresStore(database_url)
    path, synchronous = sqlite_options(database_url)
    return SqliteStore(path, clock=clock, synchronous=synchronous)


def writers_of(database_url: str) -> int:
    """How many commits may be under way: SQLite has one writer, PostgreSQL computes one while another is flushed."""
    return 2 if database_url.startswith(POSTGRES) else 1


async def submit_on(database_url: str, connection: Any, submits: Sequence[Submit]) -> Sequence[Accepted]:
    """Within the caller's own transaction, on the caller's own connection to the same database."""
    if not database_url.startswith(POSTGRES):
        raise InvalidInput("connection= needs PostgreSQL as the database: set DATABASE_URL", pointer="/connection")
    from fairlead.store.postgres import enlist

    return await enlist.submit_on(connection, submits)
