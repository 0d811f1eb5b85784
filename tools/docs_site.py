"""MkDocs hooks: bring the pages outside docs/ into the site, and point links at them.

The README is the home page. Pages such as CHANGELOG.md and bench/NOTES.md keep their place in the repository and appear
in the site below `project/`. Links to other files of the repository, such as source files, become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
HOME = "index.md"
PROJECT = "project"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    for source in _pages():
        target = HOME if source == "README.md" else f"{PROJECT}/{source}"
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite relative links: they are written for the repository."""
    here = _in_repository(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path, _, fragment = target.partition("#")
        repository = normpath(str(PurePosixPath(here).parent / path))
        site = _in_site(repository)
        if files.get_file_from_path(site) is None:
            return text
        link = relpath(site, str(PurePosixPath(page.file.src_uri).parent))
        return f"{mark}[{text}]({link}{'#' + fragment if fragment else ''})"

    return _LINK.sub(rewritten, markdown)


def _pages() -> list[str]:
    folders = ("bench", "deploy", "examples")
    installed = {".peers", "node_modules"}  # other systems, installed by the benchmark
    pages = (path for folder in folders for path in (ROOT / folder).rglob("*.md"))
    below = (path for path in pages if installed.isdisjoint(path.parts))
    return sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *below])


def _in_repository(src_uri: str) -> str:
    if src_uri == HOME:
        return "README.md"
    outside = src_uri.removeprefix(f"{PROJECT}/")
    return outside if outside != src_uri else f"docs/{src_uri}"


def _in_site(path: str) -> str:
    if path == "README.md":
        return HOME
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"{PROJECT}/{path}"
