"""The usage ledger equals the endpoint's own log after kills: a short run of `python -m tests.chaos.ledger`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.ledger import run


@pytest.mark.parametrize(("kills", "budgets"), [(3, False), (2, True)])
async def test_the_ledger_equals_the_log_of_the_endpoint_after_kills(
    tmp_path: Path, kills: int, *, budgets: bool
) -> None:
    assert (await run(tmp_path, "sqlite", kills=kills, seed=11, budgets=budgets)).endswith("equal")
