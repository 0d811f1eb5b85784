"""Vendored files: each equals its manifest byte by byte, and has its licence beside it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = "manifest.json"
FOLDERS = sorted(path.parent for place in ("src", "tests") for path in (ROOT / place).rglob(f"vendor/{MANIFEST}"))
LICENCES = {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License", "MPL-2.0": "Mozilla Public License"}


def entries(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / MANIFEST).read_text())["vendored"])


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


ENTRIES = [
    pytest.param(folder, each, id=f"{each['name']}/{each['file']}") for folder in FOLDERS for each in entries(folder)
]


def test_there_is_a_manifest_for_the_dashboard_and_one_for_its_tests() -> None:
    assert {folder.relative_to(ROOT).parts[0] for folder in FOLDERS} == {"src", "tests"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_every_vendored_file_is_in_its_manifest(folder: Path) -> None:
    listed = {each["file"] for each in entries(folder)} | {each["licence_file"] for each in entries(folder)}
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {*listed, MANIFEST}


@pytest.mark.parametrize(("folder", "entry"), ENTRIES)
def test_a_vendored_file_is_what_its_manifest_says(folder: Path, entry: dict[str, Any]) -> None:
    assert sha256(folder / entry["file"]) == entry["sha256"]
    # A modified file states how it differs from the published one.
    assert (entry["sha256"] != entry["sha256_in_package"]) == bool(entry["changed"])


@pytest.mark.parametrize(("folder", "entry"), ENTRIES)
def test_a_vendored_file_has_a_version_a_source_and_its_licence(folder: Path, entry: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", entry["version"])
    assert entry["source"].startswith(f"npm: {entry['name']}@{entry['version']}, ")
    assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", entry["package_integrity"])
    assert sha256(folder / entry["licence_file"]) == entry["licence_sha256"]
    assert LICENCES[entry["licence"]] in (folder / entry["licence_file"]).read_text()
