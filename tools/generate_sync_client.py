"""Generates the synchronous client from the asynchronous one: `make generate`.

`fairlead/client/asynchronous*.py` are written by hand, their `synchronous*.py` twins by this program. A test fails when
a twin is out of date. What really differs between an event loop and threads (a turn's renewal) is in
`async_turn.py` and `sync_turn.py`, both written by hand.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "src" / "fairlead" / "client"
TWINS = {
    "asynchronous.py": "synchronous.py",
    "asynchronous_batches.py": "synchronous_batches.py",
    "asynchronous_files.py": "synchronous_files.py",
    "asynchronous_turns.py": "synchronous_turns.py",
}
NAMES = {
    "AsyncClient": "Client",
    "AsyncJob": "ClientJob",
    "AsyncBatch": "ClientBatch",
    "AsyncBatchCalls": "BatchCalls",
    "AsyncFileCalls": "FileCalls",
    "AsyncTurn": "ClientTurn",
    "AsyncTurnCalls": "TurnCalls",
    "AsyncIterator": "Iterator",
    "AsyncOnPosition": "OnPosition",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aread": "read",
    "aiter_bytes": "iter_bytes",
    "asyncio": "time",
    "async_turn": "sync_turn",
    "asynchronous": "synchronous",
    "asynchronous_batches": "synchronous_batches",
    "asynchronous_files": "synchronous_files",
    "asynchronous_turns": "synchronous_turns",
}
Position = tuple[int, int]
HEADER = "# Generated from {source} by tools/generate_sync_client.py: change that file, then run `make generate`.\n"


def converted(source: str, name: str) -> str:
    """The synchronous form of a module: without `async` and `await`, and with the names of `NAMES`."""
    lines = source.splitlines(keepends=True)
    # From the end to the start, so that earlier positions stay right.
    for kind, start, end in reversed(_names_and_strings(source)):
        _replace(lines, start, end, NAMES.get if kind == tokenize.NAME else _renamed)
    text = "".join(lines)
    for word in ("async ", "await "):
        text = _without(text, word)
    return _formatted(HEADER.format(source=name) + text.replace("import time\nimport time\n", "import time\n"))


def _names_and_strings(source: str) -> list[tuple[int, Position, Position]]:
    """Names and strings with their extent. An f-string is one string, though Python 3.12 and later tokenise its parts:
    the output is the same on every version.
    """
    found: list[tuple[int, Position, Position]] = []
    opened: list[Position] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "FSTRING_START":
            opened.append(token.start)
        elif kind == "FSTRING_END":
            start = opened.pop()
            if not opened:
                found.append((tokenize.STRING, start, token.end))
        elif not opened and kind in ("NAME", "STRING"):
            found.append((token.type, token.start, token.end))
    return found


def _replace(lines: list[str], start: Position, end: Position, rename: Callable[[str], str | None]) -> None:
    for row in range(start[0] - 1, end[0]):
        first = start[1] if row == start[0] - 1 else 0
        last = end[1] if row == end[0] - 1 else len(lines[row])
        old = lines[row][first:last]
        lines[row] = lines[row][:first] + (rename(old) or old) + lines[row][last:]


def _renamed(text: str) -> str:
    """A docstring or a message with the names of the synchronous classes."""
    for old, new in sorted(NAMES.items(), key=lambda pair: -len(pair[0])):
        if old.startswith("Async"):
            text = text.replace(old, new)
    return text


def _without(text: str, word: str) -> str:
    """The text without a keyword. Docstrings say `async with` only inside backticks, where it has to go as well."""
    return "\n".join(line.replace(word, "") if not line.lstrip().startswith("#") else line for line in text.split("\n"))


def _formatted(text: str) -> str:
    fixes = ["check", "--select", "I,F401,UP028", "--fix-only", "--unsafe-fixes", "--quiet"]
    for command in (fixes, ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(CLIENT / "synchronous.py"), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    for source, target in TWINS.items():
        (CLIENT / target).write_text(converted((CLIENT / source).read_text(encoding="utf-8"), source), encoding="utf-8")


if __name__ == "__main__":
    main()
