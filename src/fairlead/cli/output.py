"""What commands print. Results go to stdout, everything else to stderr, and nothing a job said is printed raw: a user
id or an error message must not be able to move the cursor, colour the screen or pass for markup."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDEST = 10_000
# Control characters, and format characters such as the ones that reverse the direction of text.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def stdout() -> Console:
    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def clean(value: Any, *, keep_lines: bool = False) -> str:
    """Text that is safe on a terminal: what cannot be seen is shown as its escape, `\\x1b`."""
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
    """Clean text that rich does not read as markup."""
    return Text(clean(value, keep_lines=keep_lines), style=style)


def say(text: str | Text, *, style: str = "") -> None:
    stdout().print(safe(text, style) if isinstance(text, str) else text)


def note(text: str, *, style: str = "") -> None:
    """For the reader, not for the program behind a pipe."""
    stderr().print(safe(text, style))


def print_json(value: Any) -> None:
    """One line of JSON, flushed at once. ASCII only: an escape sequence in a value stays an escape."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


def print_problem(problem: Any) -> None:
    """An error for programs; stdout stays free of what is not a result."""
    sys.stderr.write(json.dumps(problem, default=str) + "\n")


def pretty_json(value: Any) -> Text:
    return safe(json.dumps(value, indent=2, ensure_ascii=False), keep_lines=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Cells may be `Text` with a style of their own; anything else is made safe."""
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(column, no_wrap=True)
    for row in rows:
        shown.add_row(*(cell if isinstance(cell, Text) else safe("" if cell is None else cell) for cell in row))
    return shown


def print_whole(*parts: Any) -> None:
    """Rich would cut a table's cells to the width of the terminal; ids and addresses must stay whole to be copied."""
    console = stdout()
    widest = console.options.update(max_width=WIDEST)
    needed = max(Measurement.get(console, widest, part).maximum for part in parts)
    console.width = max(console.width, needed)
    for part in parts:
        console.print(part)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    print_whole(table(columns, rows))


def local_time(value: str | None) -> str:
    """An ISO 8601 moment as the reader's clock shows it."""
    if not value:
        return ""
    try:
        return datetime.fromisoformat(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return clean(value)


def seconds(value: float) -> str:
    """3.2 s, 4 min 10 s, 2 h 5 min."""
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
