"""Reports progress on stderr, with the time since the start."""

from __future__ import annotations

import sys
import time

_begun = time.monotonic()


def elapsed() -> float:
    return time.monotonic() - _begun


def say(text: str) -> None:
    minutes, seconds = divmod(int(elapsed()), 60)
    print(f"{minutes:2}:{seconds:02}  {text}", file=sys.stderr, flush=True)
