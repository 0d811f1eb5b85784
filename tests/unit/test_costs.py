"""The cost of a step in its service's unit: what endpoints report, and how it reaches the dispatcher."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.dispatch.port import Release
from fairlead.dispatch.redis.codec import release_args
from fairlead.domain.costs import used_units
from fairlead.domain.usage import reported


@pytest.mark.parametrize(
    ("report", "unit", "used"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, "tokens", 15.0),
        ({"tokens_out": 5, "units": 2.5}, "tokens", 5.0),
        ({"tokens_out": 5, "units": 2.5}, "images", 2.5),
        ({"tokens_out": 5}, "images", None),
        ({"units": 2e9}, "images", None),
        ({"units": -1}, "images", None),
    ],
)
def test_use_is_taken_in_the_unit_of_the_service(report: dict[str, Any], unit: str, used: float | None) -> None:
    usage = reported(report)
    assert usage is not None
    assert used_units(usage, unit) == used


def test_releases_carry_the_units_that_their_calls_used() -> None:
    releases = [
        Release("1:1", "s"),
        Release("1:2", "s"),
        Release("1:3", "s", failed=False, used=2.5),
        Release("1:4", "s", refund=True, used=9.0),
    ]
    assert release_args(releases) == ["s", "0", "1:1\0001:2", "s", "22500000", "1:3", "s", "1", "1:4"]
