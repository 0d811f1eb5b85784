"""The command line: one module per command group, registered in `root`. Commands call a running gateway over HTTP,
except `up`, `api`, `worker` and `manager`, which run a process, and `migrate`, `keys` and `config`, which work without
a gateway."""

from __future__ import annotations

import sys

NEEDS_EXTRA = "the command line needs: pip install 'fairlead[server]'"
_OURS = frozenset(
    {"aiohttp", "fastapi", "httptools", "httpx2", "rich", "starlette", "typer", "uvicorn", "uvloop", "websockets"}
)


def main() -> None:
    """Run the `fairlead` command. If the packages of the command line, which are an optional extra, are not installed,
    say how to install them."""
    try:
        from fairlead.cli.root import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OURS:
            raise
        print(NEEDS_EXTRA, file=sys.stderr)
        sys.exit(1)
    sys.exit(run())
