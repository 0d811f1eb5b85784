"""SQL lives in `.sql` files beside the engine it is for: each query has a name, and a comment that says what it is for.

    -- name: running
    -- All RUNNING jobs, for a rebuild.
    SELECT …

`{name}` stands for an expression of the engine's `fragments.sql`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load(package: str, file: str) -> dict[str, str]:
    """The queries of a file by name."""
    pieces = _NAME.split(script(package, file))[1:]
    return dict(zip(pieces[::2], (piece.strip() for piece in pieces[1::2]), strict=True))


@cache
def script(package: str, file: str) -> str:
    """A whole file, with the fragments filled in."""
    sql = (resources.files(package) / file).read_text("utf-8")
    if file != "fragments.sql":
        for name, fragment in load(package, "fragments.sql").items():
            sql = sql.replace(f"{{{name}}}", without_comments(fragment))
    return sql


def without_comments(sql: str) -> str:
    return re.sub(r"^--.*$", "", sql, flags=re.MULTILINE).strip()
