"""Output of commands. Results go to stdout, everything else to stderr. Values of jobs are never printed raw: a user id
or an error message must not move the cursor, change colours or be parsed as markup."""

from __future__ import annotations

import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fairlead.cli.failure import Exit, Failure

REFRESH_EVERY_S = 1.0
PASSING = frozenset({429, 500, 502, 503, 504})
WIDEST = 10_000
GAP = 2
SHORTEST = 8
# Control characters, and format characters such as the ones that reverse the direction of text.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_UTC = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def stdout() -> Console:
    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def clean(value: Any, *, keep_lines: bool = False) -> str:
    """Return text that is safe to print on a terminal: unprintable characters are escaped, for example as `\\x1b`."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if (keep_lines and character == "\n") or unicodedata.category(character) not in _UNPRINTABLE
        else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )


def safe(value: Any, style: str = "", *, keep_lines: bool = False) -> Text:
    """Return cleaned text (see `clean`) as a `Text`, which rich does not parse as markup."""
    return Text(clean(value, keep_lines=keep_lines), style=style)


def say(text: str | Text, *, style: str = "") -> None:
    stdout().print(safe(text, style) if isinstance(text, str) else text)


def note(text: str, *, style: str = "") -> None:
    """Print a message for people, to stderr."""
    stderr().print(safe(text, style))


def hint(text: str) -> None:
    """Suggest the next command, to stderr."""
    note(text, style="dim")


def print_json(value: Any) -> None:
    """Print a value as one line of JSON, flushed at once. The line is ASCII only, so an escape sequence in a value
    cannot reach the terminal."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


def print_problem(problem: Any) -> None:
    """Print an error as JSON to stderr, since stdout is for results only."""
    sys.stderr.write(json.dumps(problem, default=str) + "\n")


def pretty_json(value: Any) -> Text:
    return safe(json.dumps(value, indent=2, ensure_ascii=False), keep_lines=True)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    width: int | None = None,
    optional: Sequence[str] = (),
    flexible: Sequence[str] = (),
) -> Table:
    """Make a table. Cells may be styled `Text`; all other values are escaped.

    If a `width` is given and the table is wider, first its empty columns are removed, then the `optional` columns in
    the given order, and then cells of the `flexible` columns are shortened.
    """
    cells = [[cell if isinstance(cell, Text) else safe("" if cell is None else cell) for cell in row] for row in rows]
    kept = range(len(columns)) if width is None else _fit(columns, cells, width, optional, flexible)
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for index in kept:
        shown.add_column(columns[index], no_wrap=True)
    for row in cells:
        shown.add_row(*(row[index] for index in kept))
    return shown


def _fit(
    columns: Sequence[str], rows: list[list[Text]], width: int, optional: Sequence[str], flexible: Sequence[str]
) -> list[int]:
    """Return the indexes of the columns that fit into `width` (see `table`). Cells of flexible columns are shortened in
    place."""
    kept = list(range(len(columns)))
    needed = [max([len(columns[index]), *(row[index].cell_len for row in rows)]) for index in kept]
    empty = [index for index in kept if not any(row[index].plain for row in rows)]

    def excess() -> int:
        return sum(needed[index] for index in kept) + GAP * (len(kept) - 1) - width

    for index in (*empty, *map(columns.index, optional)):
        if excess() > 0 and index in kept:
            kept.remove(index)
    for index in sorted(map(columns.index, flexible), key=lambda index: -needed[index]):
        if excess() > 0 and index in kept:
            needed[index] = max(len(columns[index]), SHORTEST, needed[index] - excess())
            for row in rows:
                row[index].truncate(needed[index], overflow="ellipsis")
    return kept


def print_whole(*parts: Any) -> None:
    """Print the parts in full, even if they are wider than the terminal, so that ids and URLs can be copied."""
    console = stdout()
    widest = console.options.update(max_width=WIDEST)
    needed = max(Measurement.get(console, widest, part).maximum for part in parts)
    console.width = max(console.width, needed)
    for part in parts:
        console.print(part)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    optional: Sequence[str] = (),
    flexible: Sequence[str] = (),
) -> None:
    print_whole(table(columns, rows, width=terminal_width(), optional=optional, flexible=flexible))


def terminal_width() -> int | None:
    """Return the width of the terminal. Returns None if stdout is not a terminal; tables are then not shortened."""
    console = stdout()
    return console.width if console.is_terminal else None


Draw = Callable[[int], Sequence[Any]]
"""A function that takes the width of the terminal and returns the parts of a view."""


def watch_view(draw: Draw) -> None:
    """Draw a view every second until Ctrl-C. If stdout is not a terminal, print the view whenever it has changed."""
    console = Console(highlight=False)
    if not console.is_terminal:
        _print_changes(console, draw)
    parts = draw(console.width)
    with Live(_fitted(parts), console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            time.sleep(REFRESH_EVERY_S)
            try:
                parts, problem = draw(console.width), []
            except Failure as failure:
                problem = [passing(failure)]
            live.update(_fitted([*parts, *problem]), refresh=True)


def watch_json(read: Callable[[], Any]) -> None:
    """Read a value every second and print it as one line of JSON, until Ctrl-C."""
    while True:
        print_json(read())
        time.sleep(REFRESH_EVERY_S)


def _print_changes(console: Console, draw: Draw) -> None:
    shown = ""
    while True:
        with console.capture() as captured:
            for part in draw(console.width):
                console.print(part, soft_wrap=True)
        if (text := captured.get()) != shown:
            console.file.write(text)
            console.file.flush()
            shown = text
        time.sleep(REFRESH_EVERY_S)


def _fitted(parts: Sequence[Any]) -> Group:
    """Cut the lines of a view at the right edge of the terminal, because a wrapped line would move all lines below
    it."""
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)


def passing(failure: Failure) -> Text:
    """Return the text to show after a temporary failure of the gateway. Any other failure is raised again."""
    if failure.code is not Exit.NO_CONNECTION and failure.problem.get("status") not in PASSING:
        raise failure
    return safe(f"trying again: {failure.message}", "red")


def local_time(value: str | None) -> str:
    """Convert an ISO 8601 timestamp to local time."""
    if not value:
        return ""
    try:
        return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return clean(value)


def with_local_times(text: str) -> str:
    """Convert the times in a message of the gateway, which are UTC, to local time."""
    return _UTC.sub(lambda found: local_time(found[0]), text)


def seconds(value: float) -> str:
    """Format a duration: 3.2 s, 4 min 10 s, 2 h 5 min."""
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


STATUS_STYLES = {
    "SCHEDULED": "blue",
    "PENDING": "yellow",
    "RUNNING": "cyan",
    "RETRYING": "magenta",
    "COMPLETED": "green",
    "FAILED": "red",
    "CANCELLED": "dim",
}


def status_text(status: Any) -> Text:
    return safe(status, STATUS_STYLES.get(str(status), ""))
