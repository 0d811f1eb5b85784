"""docs/architecture.md is the map: every file it names exists, and every package is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fairlead"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILES = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", TEXT)))
PACKAGES = sorted(
    str(path.parent.relative_to(SOURCE))
    for path in SOURCE.rglob("__init__.py")
    if path.parent != SOURCE and path.parent.name not in ("scripts", "migrations")
)


@pytest.mark.parametrize("file", FILES)
def test_every_file_on_the_map_exists(file: str) -> None:
    assert (SOURCE / file).is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_on_the_map(package: str) -> None:
    assert f"`{package}/`" in TEXT


def test_the_map_names_files() -> None:
    assert len(FILES) > 20
