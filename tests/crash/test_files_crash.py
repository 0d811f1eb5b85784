"""kill -9 at every point on the way of a file. `files_soak.py` does the same for longer, and on both engines."""

from __future__ import annotations

import pytest

from tests.crash.files_soak import POINTS, soak


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_reference_dangles_and_nothing_is_left_over_wherever_a_process_is_killed() -> None:
    summary = await soak(len(POINTS), {}, seed=27)
    assert f"{len(POINTS)} kills" in summary
