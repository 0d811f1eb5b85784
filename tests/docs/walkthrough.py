"""Follows a page of the documentation as a reader does: writes its files and types its commands.

- A code block with `title="app.py"` is a file.
- A `console` block has commands after `$ ` and the output to expect, stdout or stderr. `...` matches any text, also
  across lines. A word such as FAILED_JOB or ADMIN_KEY stands for a value: the first output that has it sets it, and
  later commands and outputs use it.
- A command that runs a process (`fairlead up`, `api`, `worker`, `manager`) stays until it is started again or the page
  ends.
  Its output is awaited. `pip install` is not run; only its extras are checked.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
PROCESSES = ("up", "api", "worker", "manager")
PATIENCE_S = 60.0
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
_VALUE = re.compile(r"\b([A-Z]+_(?:JOB|KEY|BATCH))\b(?!=)")


class Started:
    """A process that stays, and what it has printed so far."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        self.output = ""
        self._printed = threading.Condition()
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._printed:
                self.output += line
                self._printed.notify_all()

    def wait_for(self, expected: re.Pattern[str]) -> None:
        with self._printed:
            found = self._printed.wait_for(lambda: expected.search(self.output), PATIENCE_S)
        assert found, f"expected {expected.pattern}\nprinted {self.output}"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass
class Walkthrough:
    """`replaced` are texts of the page that differ in the test, such as addresses of servers."""

    folder: Path
    environment: dict[str, str]
    replaced: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    running: list[tuple[str, Started]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for _, process in reversed(self.running):
            process.stop()

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
            self._start(command, words[1], expected)
        else:
            self._check(command, expected)

    def _start(self, command: str, kind: str, expected: str) -> None:
        if kind in ("up", "api"):  # the page starts it again: one gateway per port
            for name, process in self.running:
                if name in ("up", "api"):
                    process.stop()
            self.running = [each for each in self.running if each[0] not in ("up", "api")]
        started = Started(command, self.folder, self.environment)
        self.running.append((kind, started))
        started.wait_for(re.compile(expected, re.S))

    def _check(self, command: str, expected: str) -> None:
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        found = re.fullmatch(expected + r"\s*", ended.stdout, re.S)
        assert found, f"$ {command}\nexpected {expected}\nprinted {ended.stdout}"
        self.values.update(found.groupdict())

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


def environment_of(port: int, **more: str) -> dict[str, str]:
    """The environment of a reader: the commands of this installation, a free port, and the default settings else."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLEAD_", "PROMOTE_"))}
    for name in ("DATABASE_URL", "REDIS_URL", "PRIORITY_API_URL"):
        kept.pop(name, None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    address = {"FAIRLEAD_SERVER__PORT": str(port), "FAIRLEAD_URL": f"http://127.0.0.1:{port}"}
    return {**kept, **address, "PATH": path, "COLUMNS": "200", **more}
