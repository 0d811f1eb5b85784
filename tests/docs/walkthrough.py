"""Follows a page of the documentation as a reader does: writes its files and types its commands.

- A code block with `title="app.py"` is a file.
- A `console` block has commands after `$ ` and the output to expect, stdout or stderr. `...` matches any text, also
  across lines. A word such as FAILED_JOB or ADMIN_KEY stands for a value: the first output that has it sets it, and
  later commands and outputs use it.
- A command that runs a process (`fairlead up`, `api`, `worker`, `manager`) stays until it is started again or the page
  ends.
  Its output is awaited. `pip install` is not run; only its extras are checked.
- `fairlead list` is repeated until its output is as expected: a gateway learns of new keys within about a second.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

from tests.integration.cli_fork import Forked
from tests.integration.cli_process import COMMAND, Up, environment, started

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
PROCESSES = ("up", "api", "worker", "manager")
PATIENCE_S = 60.0
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
_VALUE = re.compile(r"\b([A-Z]+_(?:JOB|KEY|BATCH))\b(?!=)")


@dataclass
class Walkthrough:
    """`replaced` are texts of the page that differ in the test, such as addresses of servers."""

    folder: Path
    environment: dict[str, str]
    replaced: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    running: list[tuple[str, Up, ExitStack]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for _, process, end in reversed(self.running):
            _stop(process, end)

    def follow(self, page: Path) -> int:
        """Follow the page and return the number of commands that were run."""
        count = 0
        for language, title, body in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if title:
                (self.folder / title).write_text(body, encoding="utf-8")
            elif language == "console":
                for command, expected in _commands(body):
                    self._run(command, expected)
                    count += 1
        return count

    def _run(self, command: str, expected: str) -> None:
        command, expected = self._filled(command), self._filled(expected, escape=True)
        words = shlex.split(command)
        if words[:2] == ["pip", "install"]:
            assert set(re.findall(r"\w+", words[2].partition("[")[2])) <= EXTRAS
        elif words[0] == "export":
            self.environment.update(word.split("=", 1) for word in words[1:])
        elif words[0] == "fairlead" and words[1] in PROCESSES:
            self._start(words[1:], expected)
        else:
            self._check(command, words, expected)

    def _start(self, words: list[str], expected: str) -> None:
        if words[0] in ("up", "api"):  # the page starts it again: one gateway per port
            for kind, process, end in self.running:
                if kind in ("up", "api"):
                    _stop(process, end)
            self.running = [each for each in self.running if each[0] not in ("up", "api")]
        end = ExitStack()
        process = end.enter_context(started((*COMMAND, *words), cwd=self.folder, env=self.environment))
        self.running.append((words[0], process, end))
        printed = ""
        while not re.search(expected, printed, re.S):
            printed += process.wait_for("")

    def _check(self, command: str, words: list[str], expected: str) -> None:
        until = time.monotonic() + (PATIENCE_S if words[:2] == ["fairlead", "list"] else 0.0)
        while True:
            printed = self._printed(command, words)
            found = re.fullmatch(expected + r"\s*", printed, re.S)
            if found or time.monotonic() > until:
                break
        assert found, f"$ {command}\nexpected {expected}\nprinted {printed}"
        self.values.update(found.groupdict())

    def _printed(self, command: str, words: list[str]) -> str:
        with TemporaryFile("w+") as output:
            if words[0] == "fairlead":
                process = Forked(
                    words[1:], cwd=self.folder, env=environment(self.environment), stdout=output, stderr=output
                )
                process.wait(PATIENCE_S)
            else:
                subprocess.run(
                    ["bash", "-c", command], cwd=self.folder, env=environment(self.environment), stdout=output,
                    stderr=output, timeout=PATIENCE_S, check=False,
                )  # fmt: skip
            output.seek(0)
            return output.read()

    def _filled(self, text: str, *, escape: bool = False) -> str:
        """Fill in known values and what differs in the test. With `escape`, the text becomes a regular expression that
        captures the values that are not known yet."""
        for shown, real in self.replaced.items():
            text = text.replace(shown, real)
        text = _VALUE.sub(lambda name: self.values.get(name[1], name[1]), text)
        if not escape:
            return text
        text = re.sub(r"^\.\.\.\n|\n\.\.\.$", "...", text.rstrip("\n"), flags=re.M)
        pattern = ".*".join(re.escape(part) for part in text.split("..."))
        return _VALUE.sub(r"(?P<\1>[\\w-]+)", pattern)


def _commands(block: str) -> list[tuple[str, str]]:
    parts = re.split(r"^\$ ", block, flags=re.M)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def _stop(process: Up, end: ExitStack) -> None:
    with end:
        process.signal(signal.SIGINT)
        process.ended()


def environment_of(port: int) -> dict[str, str]:
    """What differs from a reader's environment: the commands of this installation, and a free port."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    address = {"FAIRLEAD_SERVER__PORT": str(port), "FAIRLEAD_URL": f"http://127.0.0.1:{port}"}
    return {**address, "PATH": path, "COLUMNS": "200"}
