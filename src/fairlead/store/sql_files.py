"""Reads the SQL files of an engine: named queries, and numbered migrations.

Each query has a name and a comment. `{name}` is replaced by the fragment of that name in the engine's `fragments.sql`.

    -- name: running
    -- All RUNNING jobs, for a rebuild.
    SELECT …

Each migration (`migrations/0001_jobs.sql`, `0002_…`) is applied in one transaction. The engines store the version of
the schema, and lock the database against concurrent migrations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_WRITES = (
    "apply",
    "admin",
    "batches",
    "dashboard",
    "usage",
    "budgets",
    "files",
    "file_batches",
    "webhooks",
    "schedules",
)
WRITES = tuple(f"{name}.sql" for name in _WRITES)
"""The files of an engine that have the statements of commits."""
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load(package: str, file: str) -> dict[str, str]:
    """Read a SQL file and return its queries by name."""
    pieces = _NAME.split(script(package, file))[1:]
    return dict(zip(pieces[::2], (piece.strip() for piece in pieces[1::2]), strict=True))


@cache
def script(package: str, file: str) -> str:
    """Read a SQL file and return its whole text, with the fragments filled in."""
    sql = (resources.files(package) / file).read_text("utf-8")
    if file != "fragments.sql":
        for name, fragment in load(package, "fragments.sql").items():
            sql = sql.replace(f"{{{name}}}", without_comments(fragment))
    return sql


def without_comments(sql: str) -> str:
    return re.sub(r"^--.*$", "", sql, flags=re.MULTILINE).strip()


_MIGRATION = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str


@cache
def migrations(package: str) -> tuple[Migration, ...]:
    """The texts of all migrations in the folder `migrations` of `package`. They are numbered from 1 without gaps."""
    files = [
        Migration(int(match[1]), match[2], file.read_text("utf-8"))
        for file in (resources.files(package) / "migrations").iterdir()
        if (match := _MIGRATION.fullmatch(file.name))
    ]
    files.sort(key=lambda migration: migration.number)
    if [migration.number for migration in files] != list(range(1, len(files) + 1)):
        raise RuntimeError(f"the migrations of {package} are not numbered 1, 2, 3…")
    return tuple(files)
