"""The benchmark's own parts: what it asks for, and what it says of what it found."""

from __future__ import annotations

from typing import Any, cast

from bench.scenarios import visit
from bench.sizes import FULL, QUICK
from bench.stage import Stage


class _Fast:
    """A system that takes in all that it is asked to, at once."""

    def __init__(self) -> None:
        self.about = {"bulk": True}
        self.asked: list[tuple[str, int]] = []

    def store_bytes(self) -> int:
        return 0

    def ask(self, command: str, **options: Any) -> dict[str, Any]:
        count = options["at_most"] if command == "enqueue" else options["count"]
        self.asked.append((command, count))
        return {"count": count, "seconds": 0.1}


def test_a_system_that_is_quick_one_by_one_has_many_jobs_left_for_its_bulk() -> None:
    for sizes in (QUICK, FULL):
        stage = _Fast()
        waiting = visit.fill(cast(Stage, stage), sizes, {"enqueue"}, lambda *figure: None)
        assert waiting == sizes.jobs
        command, count = stage.asked[-1]
        assert command == "fill"
        assert count >= 5 * 1000  # five calls of its bulk
