"""kill -9 at every point on the way of a batch. `batches_soak.py` does the same for longer, and on both engines."""

from __future__ import annotations

import pytest

from tests.crash.batches_soak import KillingBatches
from tests.crash.files_soak import soak


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_batch_is_neither_run_by_halves_nor_twice_wherever_a_process_is_killed() -> None:
    kills = len(KillingBatches.points)
    assert f"{kills} kills" in await soak(kills, {}, seed=34, kind=KillingBatches)
