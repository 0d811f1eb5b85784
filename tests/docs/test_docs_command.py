"""`fairlead docs` explains every page, error code and finding, from the source tree and from the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.cli.docs import find
from fairlead.observe.doctor import KINDS

FOLDER = Path(__file__).parents[2] / "docs"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in FOLDER.rglob("*.md") if page.parent.name != "adr"}
CODES = sorted(
    kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FairleadError)
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_printed_whole(page: str) -> None:
    assert [found.text for found in find(PAGES, f"docs/{page}.md")] == [PAGES[page]]


@pytest.mark.parametrize("code", KINDS)
def test_a_finding_is_explained_by_its_row(code: str) -> None:
    [found] = [each for each in find(PAGES, code) if each.page == "doctor"]
    assert found.text.count(f"| `{code}` |") == 1


@pytest.mark.parametrize("code", CODES)
def test_an_error_code_is_explained(code: str) -> None:
    assert any(f"`{code}`" in found.text for found in find(PAGES, code))


def test_a_page_of_a_folder_is_found_by_its_path() -> None:
    for path in ("docs/how-to/testing.md", "how-to/testing", "testing"):
        assert [found.page for found in find(PAGES, path)] == ["testing"]


def test_a_heading_gives_its_section_only() -> None:
    [found] = find({"a": "# A\n\n## One\nfirst\n```sh\n# no heading\n```\n## Two\nsecond\n"}, "one")
    assert (found.section, found.text) == ("One", "## One\nfirst\n```sh\n# no heading\n```")


def test_an_unknown_topic_gives_nothing() -> None:
    assert find(PAGES, "no-such-topic") == []
