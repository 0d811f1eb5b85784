"""`make chaos`: rounds with consecutive seeds for `CHAOS_MINUTES`, starting with `CHAOS_SEED`."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.faults import FAULTS
from tests.chaos.scenario import rampage


def _say(what: str) -> None:
    print(what, flush=True)


def main() -> int:
    minutes = float(os.environ.get("CHAOS_MINUTES") or 10)
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    until, rounds = time.monotonic() + minutes * 60, 0
    while rounds == 0 or time.monotonic() < until:
        rounds += 1
        _say(f"round {rounds}, CHAOS_SEED={seed}")
        # Kept on failure, because it contains all logs.
        folder = Path(tempfile.mkdtemp(prefix="fairlead-chaos-"))
        _say(str(asyncio.run(rampage(folder, seed, _say, faults=tuple(FAULTS) * 2))))
        shutil.rmtree(folder)
        seed += 1
    _say(f"{rounds} rounds, and every guarantee held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
