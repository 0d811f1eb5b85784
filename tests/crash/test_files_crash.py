"""kill -9 at every point on the way of a file. `files_soak.py` does the same for longer, and on both engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.failpoints import FILE_COMPLETED, PART_WRITTEN
from tests.crash.files_away import take_away
from tests.crash.files_http import kill_gateways
from tests.crash.files_soak import POINTS, distributed, soak


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_reference_dangles_and_nothing_is_left_over_wherever_a_process_is_killed() -> None:
    summary = await soak(len(POINTS), {}, seed=27)
    assert f"{len(POINTS)} kills" in summary


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_upload_that_was_answered_is_lost_with_its_gateway() -> None:
    """`files_http.py` does the same at all points, and on both engines."""
    assert "2 kills" in await kill_gateways((FILE_COMPLETED, PART_WRITTEN), {}, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engines", ["embedded", "distributed"])
async def test_jobs_wait_for_an_object_store_that_is_away(engines: str, tmp_path: Path) -> None:
    """`files_away.py` does the same for longer."""
    urls = {"database_url": f"sqlite:///{tmp_path}/fairlead.db"}
    if engines == "distributed":
        urls = {name.lower(): value for name, value in (await distributed()).items()}
    assert "nothing lost" in await take_away(1.0, 60, urls)
