"""The command line: one file per command group, put together in `root`. It speaks HTTP to a running gateway, except for
`up`, `api`, `worker` and `manager`, which run one, and `migrate` and `config`, which work on this machine."""

from __future__ import annotations

import sys

NEEDS_EXTRA = "the command line needs: pip install 'fairlead[server]'"
_OURS = frozenset(
    {"aiohttp", "fastapi", "httptools", "httpx2", "rich", "starlette", "typer", "uvicorn", "uvloop", "websockets"}
)


def main() -> None:
    """The `fairlead` command. The embedded library does without the packages it needs, so they may be missing."""
    try:
        from fairlead.cli.root import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OURS:
            raise
        print(NEEDS_EXTRA, file=sys.stderr)
        sys.exit(1)
    sys.exit(run())
