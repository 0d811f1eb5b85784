"""Migrations are numbered SQL files beside their engine: `0001_jobs.sql`, `0002_…`, each one transaction.

What is here is shared by the engines: finding the files. How a version is recorded, and how two processes that open
the same database at once are kept apart, is each engine's own business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str


@cache
def migrations(package: str) -> tuple[Migration, ...]:
    """All migrations of `package`, which has them in its folder `migrations`. Numbers run from 1 without a gap."""
    found = [
        Migration(int(match[1]), match[2], file.read_text("utf-8"))
        for file in (resources.files(package) / "migrations").iterdir()
        if (match := _NAME.fullmatch(file.name))
    ]
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise RuntimeError(f"the migrations of {package} are not numbered 1, 2, 3…")
    return tuple(found)
