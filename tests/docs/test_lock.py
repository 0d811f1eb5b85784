"""The lock has everything that pyproject.toml asks for, with hashes, and says nothing about where it was made."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
RUNTIME = PROJECT["project"]["dependencies"] + EXTRAS["server"] + EXTRAS["postgres"] + EXTRAS["redis"]
BUILD = ["editables", *PROJECT["build-system"]["requires"]]
ASKED = {"dev.txt": [*RUNTIME, *PROJECT["dependency-groups"]["dev"], *BUILD], "server.txt": RUNTIME, "build.txt": BUILD}


def pinned(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return {canonicalize_name(package): version for package, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)}


@pytest.mark.parametrize("name", ASKED)
def test_the_lock_pins_what_the_project_asks_for(name: str) -> None:
    versions = pinned(name)
    for asked in map(Requirement, ASKED[name]):
        version = versions.get(canonicalize_name(asked.name))
        assert version is not None, f"{asked.name} is not in {name}; run `make lock`"
        assert asked.specifier.contains(version, prereleases=True), f"{asked} is not met by {version}; run `make lock`"


@pytest.mark.parametrize("name", ASKED)
def test_every_pin_has_a_hash_and_no_index_is_named(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"://|--index|--find-links|--extra|--trusted", text)


@pytest.mark.parametrize("name", ["server.txt", "build.txt"])
def test_all_locks_agree(name: str) -> None:
    dev = pinned("dev.txt")
    assert {package: dev.get(package) for package in pinned(name)} == pinned(name)
