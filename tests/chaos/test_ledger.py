"""The usage ledger equals the endpoint's own log after kills: a short run of `python -m tests.chaos.ledger`."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.ledger import run


async def test_the_ledger_equals_the_log_of_the_endpoint_after_kills(tmp_path: Path) -> None:
    assert (await run(tmp_path, "sqlite", kills=3, seed=11)).endswith("equal")
