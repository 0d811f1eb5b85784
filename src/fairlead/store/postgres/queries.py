"""The queries of this engine, by name: see `store/queries.py`."""

from __future__ import annotations

from functools import cache

from fairlead.store import queries


@cache
def load(file: str) -> dict[str, str]:
    """Without their comments: these go to the server with every statement that is not prepared yet."""
    return {name: queries.without_comments(sql) for name, sql in queries.load(__package__, file).items()}


READS = load("queries.sql")
WRITES = load("apply.sql") | load("operators.sql") | load("batches.sql") | load("board.sql")
