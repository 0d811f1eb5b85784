"""The queries of this engine, by name: see `store/queries.py`."""

from __future__ import annotations

from fairlead.store import queries


def load(file: str) -> dict[str, str]:
    return queries.load(__package__, file)


def script(file: str) -> str:
    return queries.script(__package__, file)
