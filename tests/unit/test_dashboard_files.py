"""The static files of the dashboard: complete without a build step, small, with enough contrast, and free of markup
from data."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

import fairlead.gateway.dashboard

STATIC = Path(fairlead.gateway.dashboard.__file__).parent / "static"
OURS = sorted(path for path in STATIC.rglob("*.js") if "vendor" not in path.parts)
SHEETS = sorted(STATIC.rglob("*.css"))

IMPORT = re.compile(r'^(?:import|export)\s?(?:[\w*{} ,]+?\s?from\s?)?"([^"]+)"', re.MULTILINE)
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|javascript:|DOMParser"
)


def name(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


def imported_by(path: Path) -> set[Path]:
    return {(path.parent / target).resolve() for target in IMPORT.findall(path.read_text())}


def everything_below(path: Path) -> set[Path]:
    found, ahead = set(), [path.resolve()]
    while ahead:
        each = ahead.pop()
        if each not in found:
            found.add(each)
            ahead += imported_by(each)
    return found


@pytest.mark.parametrize("path", OURS, ids=name)
def test_every_import_is_a_file_in_the_folder(path: Path) -> None:
    for target in IMPORT.findall(path.read_text()):
        assert target.startswith("."), f"{target} needs an import map"
        assert (path.parent / target).is_file(), f"{target} does not exist"


@pytest.mark.parametrize("path", OURS, ids=name)
def test_no_module_turns_text_into_markup_or_code(path: Path) -> None:
    assert not MARKUP.findall(path.read_text())


@pytest.mark.parametrize(("name", "script"), [("index.html", "app.js"), ("docs.html", "docs.js")])
def test_a_page_preloads_all_its_modules(name: str, script: str) -> None:
    page = (STATIC / name).read_text()
    named = {STATIC / target for target in re.findall(r'rel="modulepreload" href="/static/([^"]+)"', page)}

    assert {path.resolve() for path in named} | {(STATIC / script).resolve()} == everything_below(STATIC / script)


@pytest.mark.parametrize("name", ["index.html", "docs.html"])
def test_a_page_has_nothing_inline_and_nothing_from_other_hosts(name: str) -> None:
    page = (STATIC / name).read_text()

    assert not re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    assert all(target.startswith("/static/") for target in re.findall(r'(?:src|href)="([^"]+)"', page))
    for sheet in SHEETS:
        assert not re.findall(r"@import|url\(", sheet.read_text())


def test_every_page_has_a_module() -> None:
    names = set(re.findall(r'name: "(\w+)"', (STATIC / "pages.js").read_text()))

    assert names == {path.stem for path in (STATIC / "pages").glob("*.js")} - {"signin"}


def test_all_files_together_are_below_110_kilobytes_compressed() -> None:
    parts = [path for path in STATIC.rglob("*") if path.suffix in {".html", ".js", ".css", ".svg"}]

    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in parts) < 110_000


def test_files_are_short() -> None:
    assert not [name(path) for path in OURS + SHEETS if len(path.read_text().splitlines()) > 300]


# ---------------------------------------------------------------- colours


def tokens(theme: int) -> dict[str, str]:
    text = (STATIC / "css" / "tokens.css").read_text()
    return {token: pair[theme] for token, *pair in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", text)}


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


STATES = ("running", "waiting", "held", "failed", "retrying", "ok", "warning")
TEXT = [
    *((ink, ground) for ink in ("ink", "ink-soft", "accent") for ground in ("ground", "surface", "sunken")),
    *((f"{state}-ink", ground) for state in STATES for ground in ("surface", "ground", f"{state}-tint")),
    *(("ink", f"{state}-tint") for state in STATES),
    ("ink-soft", "running-tint"),
    ("on-accent", "accent"),
]
SHAPES = [*((state, "surface") for state in STATES), ("line-strong", "surface"), ("focus", "ground")]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_have_enough_contrast(theme: int) -> None:
    colour = tokens(theme)

    faint = [(a, b) for a, b in TEXT if contrast(colour[a], colour[b]) < 4.5]
    faint += [(a, b) for a, b in SHAPES if contrast(colour[a], colour[b]) < 3]
    assert not faint


def test_every_token_that_is_used_is_defined() -> None:
    defined = set(re.findall(r"--([\w-]+):", (STATIC / "css" / "tokens.css").read_text()))
    given_by_scripts = {"slots"}

    used = {token for sheet in SHEETS for token in re.findall(r"var\(--([\w-]+)\)", sheet.read_text())}
    assert used <= defined | given_by_scripts
