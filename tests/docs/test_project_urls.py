"""Every wheel has the URLs of one repository, and none if the repository is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://git.example/team/fairlead"


def urls() -> dict[str, str]:
    return dict(ProjectMetadata(str(ROOT), PluginManager()).core.urls)


def test_all_urls_are_of_one_repository_and_lead_to_files_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_REPOSITORY", f"{REPOSITORY}/")
    found = urls()
    assert found.keys() == {"Documentation", "Source", "Changelog", "Issues"}
    assert {url for url in found.values() if not f"{url}/".startswith(f"{REPOSITORY}/")} == set()
    files = [url.partition("/blob/main/")[2] for url in found.values() if "/blob/" in url]
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_without_a_repository_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLEAD_REPOSITORY", raising=False)
    assert urls() == {}
