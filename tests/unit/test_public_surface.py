"""The public surface: additions are fine, removals and changes are not."""

from __future__ import annotations

import json

import pytest
from tests.public_surface import FILE, collect

KEPT: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def surface() -> dict[str, list[str]]:
    return collect()


@pytest.mark.parametrize("part", KEPT)
def test_nothing_public_is_removed_or_changed(part: str, surface: dict[str, list[str]]) -> None:
    assert sorted(set(KEPT[part]) - set(surface[part])) == []


@pytest.mark.parametrize("part", KEPT)
def test_additions_are_recorded(part: str, surface: dict[str, list[str]]) -> None:
    added = sorted(set(surface[part]) - set(KEPT[part]))
    assert added == [], "record it: python -m tests.public_surface"
