"""Two gateways, three workers and two managers under load, with every fault injected."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.scenario import rampage


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_accepted_job_ends_once_and_no_limit_is_exceeded_under_faults(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"CHAOS_SEED={seed}")
    print(await rampage(tmp_path, seed, print))
