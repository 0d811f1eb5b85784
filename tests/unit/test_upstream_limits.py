"""What headers of upstreams say about their limits, whatever is in them."""

from __future__ import annotations

import time

import pytest

from fairlead.executors.upstream_limits import _reset_of


def reset(text: str) -> float | None:
    return _reset_of({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": text})


@pytest.mark.parametrize(
    ("text", "seconds"), [("12", 12.0), ("6m0s", 360.0), ("350ms", 0.35), ("1h2m3.5s", 3723.5), ("999999", 86400.0)]
)
def test_a_reset_is_a_duration(text: str, seconds: float) -> None:
    assert reset(text) == pytest.approx(seconds)


@pytest.mark.parametrize("unit", [1, 1000])
def test_a_reset_may_be_a_unix_time(unit: int) -> None:
    before = time.time()
    seconds = reset(str(int((before + 300) * unit)))
    assert seconds is not None
    assert 298 - (time.time() - before) <= seconds <= 300


def test_a_reset_in_the_past_is_over() -> None:
    assert reset("1400000000") == 0.0


@pytest.mark.parametrize("text", ["", "-5", "nan", "inf", "soon", "garbage5s", "1h-5s", "5 s", "2026-01-01T00:00:05Z"])
def test_anything_else_is_ignored(text: str) -> None:
    assert reset(text) is None
