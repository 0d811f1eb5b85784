"""The cost of a step in its service's unit: what endpoints report, and how it reaches the dispatcher."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.dispatch.port import Release
from fairlead.dispatch.redis.codec import release_args
from fairlead.engine.step_run import used_units
from fairlead.executors.port import Success


@pytest.mark.parametrize(
    ("usage", "used"),
    [
        ({"total_tokens": 30, "prompt_tokens": 10}, 30.0),
        ({"prompt_tokens": 10, "completion_tokens": 5}, 15.0),
        ({"completion_tokens": 5}, 5.0),
        ({"total_tokens": -3, "completion_tokens": 5}, 5.0),
        ({"total_tokens": 1e300}, None),
        ({"total_tokens": 10**400}, None),
        ({"total_tokens": float("nan")}, None),
        ({"total_tokens": True}, None),
        ({"total_tokens": "30"}, None),
        ({}, None),
        ([30], None),
        (None, None),
    ],
)
def test_only_plausible_usage_counts(usage: Any, used: float | None) -> None:
    assert used_units(Success("null", {"usage": usage})) == used


def test_a_call_without_result_reports_no_usage() -> None:
    assert used_units(None) is None
    assert used_units(Success("null")) is None


def test_releases_carry_the_units_that_their_calls_used() -> None:
    releases = [
        Release("1:1", "s"),
        Release("1:2", "s"),
        Release("1:3", "s", failed=False, used=2.5),
        Release("1:4", "s", refund=True, used=9.0),
    ]
    assert release_args(releases) == ["s", "0", "1:1\0001:2", "s", "22500000", "1:3", "s", "1", "1:4"]
