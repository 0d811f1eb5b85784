"""Every picture that the docs show exists with a description, and every picture is used and small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
MOVING = ROOT / "docs" / "dashboard.gif"
PICTURES = sorted([*(ROOT / "docs").glob("*.png"), *(ROOT / "docs" / "pictures").glob("*.svg"), MOVING])
LARGEST = 200_000
LARGEST_MOVING = 2_000_000

SHOWN = [
    pytest.param(page, target, words, id=f"{page.relative_to(ROOT)}: {target}")
    for page in PAGES
    for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
]


@pytest.mark.parametrize(("page", "target", "words"), SHOWN)
def test_a_shown_picture_exists_and_has_a_description(page: Path, target: str, words: str) -> None:
    assert (page.parent / target).resolve() in PICTURES
    assert words


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_shown_somewhere_and_is_small(picture: Path) -> None:
    assert picture in {(page.parent / target).resolve() for page, target, _ in (each.values for each in SHOWN)}
    assert picture.stat().st_size < (LARGEST_MOVING if picture == MOVING else LARGEST)
