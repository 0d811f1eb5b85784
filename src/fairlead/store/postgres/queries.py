"""The SQL statements of PostgreSQL by name, read from the SQL files of this package (see `store/sql_files.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from fairlead.store import sql_files


@cache
def load(file: str) -> dict[str, str]:
    """Read a SQL file and return its statements by name. Comments are removed, because they would be sent to the server
    with every statement that is not prepared."""
    return {name: sql_files.without_comments(sql) for name, sql in sql_files.load(__package__, file).items()}


READS = load("queries.sql")
WRITES = {name: sql for file in sql_files.WRITES for name, sql in load(file).items()}

Ask = Callable[..., Awaitable[list[Any]]]
"""Runs a named statement with these parameters."""
