"""docs: prints the documentation that belongs to this version, from the wheel or from the source tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

import fairlead
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.options import Json
from fairlead.cli.output import print_json

_HEADING = re.compile(r"^(#{1,4}) (.+)$", re.M)
_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of the documentation: a whole page (`section` is its title), a section, or the rows of a table."""

    page: str
    section: str
    text: str


def docs(
    topic: Annotated[
        str | None,
        typer.Argument(
            help="A page, a heading, or the code of an error or of a doctor finding. Default: list the pages."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print the page or section of the documentation that explains a topic, such as `openai` or `no-worker`."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in _pages()}
    found = find(pages, topic) if topic else [Passage(name, _title(text), "") for name, text in pages.items()]
    if not found:
        similar = get_close_matches(topic or "", pages, n=3)
        next_step = f"similar pages: {', '.join(similar)}" if similar else "`fairlead docs` lists the pages"
        raise Failure(f"the documentation has nothing about {topic!r}; {next_step}", Exit.USAGE)
    if json:
        print_json([asdict(each) for each in found])
        return
    console = Console(highlight=False, soft_wrap=True)
    for each in found:
        if not each.text:
            console.print(f"{each.page:<20} {each.section}", markup=False)
        elif console.is_terminal:
            console.print(Markdown(each.text), soft_wrap=False)
        else:
            print(each.text)


def find(pages: dict[str, str], topic: str) -> list[Passage]:
    """Find a topic: the page of that name, else the rows of tables that begin with it and the sections that are named
    after it, else the sections that mention it as code."""
    wanted = topic.removesuffix(".md").removeprefix("docs/").removeprefix("how-to/").strip("`")
    if wanted in pages:
        return [Passage(wanted, _title(pages[wanted]), pages[wanted])]
    sections = [(name, title, body) for name, text in pages.items() for title, body in _sections(text)]
    exact = [
        Passage(name, title, excerpt)
        for name, title, body in sections
        if (excerpt := body if wanted.lower() in _names(title) else _rows(body, wanted))
    ]
    return exact or [Passage(name, title, body) for name, title, body in sections if f"`{wanted}`" in body][:5]


def _pages() -> list[Path]:
    """The pages for users: the design decisions in docs/adr are not part of the wheel."""
    package = Path(fairlead.__file__).parent
    installed = package / "docs"
    folder = installed if installed.is_dir() else package.parents[1] / "docs"
    return sorted(path for path in folder.rglob("*.md") if path.parent.name != "adr")


def _title(text: str) -> str:
    first = _HEADING.search(text)
    return first.group(2) if first else ""


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """The sections of a page with their titles. A section ends at the next heading of any level."""
    hidden = _FENCE.sub(lambda block: re.sub(r"^#", " ", block.group(), flags=re.M), text)
    headings = list(_HEADING.finditer(hidden))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    for heading, end in zip(headings, ends, strict=True):
        yield heading.group(2), text[heading.start() : end].strip()


def _names(title: str) -> set[str]:
    """The topics that a heading names: its whole text, and each word in backticks."""
    plain = title.replace("`", "").lower()
    return {plain, plain.replace(" ", "-"), *re.findall(r"`([^`]+)`", title.lower())}


def _rows(body: str, topic: str) -> str:
    """The table rows of a topic, below the heads of their tables; empty if there are none."""
    lines, head, kept = body.splitlines(), [], []
    for number, line in enumerate(lines):
        if line.startswith("| ---") and number:
            head = [lines[number - 1], line]
        elif line.startswith("| ") and _is_row_of(line, f"`{topic}`"):
            kept += [*head, line]
            head = []
    return "\n".join(["**" + _title(body) + "**", "", *kept]) if kept else ""


def _is_row_of(line: str, code: str) -> bool:
    """Whether the first cell of a table row contains the code, or another cell is the code."""
    first, *others = line.strip("| ").split(" | ")
    return code in first or code in others
