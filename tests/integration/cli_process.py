"""`fairlead` as a user runs it: real processes, started on free ports and always ended."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from tests.integration.cli_fork import Forked

COMMAND = (sys.executable, "-m", "fairlead.cli")
DEADLINE_S = 30.0

PROJECT = '''
import asyncio
import time
from pathlib import Path

from fairlead import Call, Fairlead, Permanent, Retry

app = Fairlead()


@app.service(limit=4)
async def echo(call: Call):
    return call.params


@app.service(limit=1)
async def gate(call: Call):
    """Runs until the test opens the gate: nothing here depends on how fast the machine is."""
    call.progress(0.5, "half \\x1b[31mway [bold]there[/bold]")
    Path(call.params["entered"]).touch()
    while not Path(call.params["gate"]).exists():
        await asyncio.sleep(0.01)
    return {"through": True}


@app.service(limit=1, lease_ttl=600)
async def patient(call: Call):
    """Its slot outlives a silent worker by far."""
    return await gate(call)


@app.service(limit=1)
def stuck(call: Call):
    """A function in a thread that cannot be stopped."""
    Path(call.params["entered"]).touch()
    time.sleep(600)


@app.service(limit=1)
async def stubborn(call: Call):
    """Ignores being cancelled."""
    Path(call.params["entered"]).touch()
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass


@app.service(limit=1, retry="manual")
async def flaky(call: Call):
    if not Path(call.params["gate"]).exists():
        raise Retry("not yet")
    return {"through": True}


@app.service(limit=1)
async def broken(call: Call):
    raise Permanent("\\x1b[2Jno way [red]at all[/red]\\nnext line")


@app.service(limit=4, lease_ttl=2, backoff=[0])
async def talk(call: Call):
    """Yields words, and waits after some of them until the test opens the gate."""
    for number, word in enumerate(call.params["words"]):
        while number == call.params.get("after") and not Path(call.params["gate"]).exists():
            await asyncio.sleep(0.01)
        yield word
    if call.params.get("fails"):
        raise Permanent("no more words")


app.pipeline("two", ["echo", "gate"])
'''


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests without the variables that configure Fairlead."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FAIRLEAD_", "PROMOTE_"))
        and name not in ("DATABASE_URL", "REDIS_URL", "PRIORITY_API_URL", "PORT", "SCALE")
    }
    return {**kept, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **(extra or {})}


def fairlead(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
    with TemporaryFile("w+") as given, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        given.write(stdin)
        given.seek(0)
        process = Forked(arguments, cwd=cwd, env=environment(env), stdin=given, stdout=out, stderr=err)
        try:
            code = process.wait(DEADLINE_S)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read())


@dataclass
class Up:
    """A running process whose output is read as it is written."""

    process: Forked | subprocess.Popen[bytes]
    stdout: IO[str]
    cwd: Path
    lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    output: list[str] = field(default_factory=list)
    url: str = ""
    banner: dict[str, Any] = field(default_factory=dict)

    def wait_for(self, text: str) -> str:
        """The first line from now on that contains `text`."""
        while True:
            try:
                line = self.lines.get(timeout=DEADLINE_S)
            except queue.Empty:
                line = ""
            if not line:  # no output for too long, or the end of the output
                raise AssertionError(f"never printed {text!r}, only:\n{''.join(self.output)}")
            if text in line:
                return line

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        return self.process.wait(DEADLINE_S)

    def run(self, *arguments: str, stdin: str = "") -> Done:
        return fairlead(*arguments, cwd=self.cwd, env={"FAIRLEAD_URL": self.url}, stdin=stdin)


@contextmanager
def started(command: tuple[str, ...], *, cwd: Path, env: Mapping[str, str] | None = None) -> Iterator[Up]:
    """Any command: `fairlead` itself is forked, others are started as usual."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        process = _start(command, cwd, environment(env), out)
    up = Up(process, os.fdopen(reading), cwd)
    reader = threading.Thread(target=_read, args=(up,))
    reader.start()
    try:
        yield up
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        reader.join(DEADLINE_S)
        up.stdout.close()


def _start(command: tuple[str, ...], cwd: Path, env: dict[str, str], out: IO[str]) -> Forked | subprocess.Popen[bytes]:
    # Failpoints are read when their module is imported, which the process that forks has done.
    if command[: len(COMMAND)] == COMMAND and "FAIRLEAD_FAILPOINT" not in env:
        return Forked(command[len(COMMAND) :], cwd=cwd, env=env, stdout=out, stderr=out)
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=out, stderr=out)


def _read(up: Up) -> None:
    for line in up.stdout:
        up.output.append(line)
        up.lines.put(line)
    up.lines.put("")


@contextmanager
def up(cwd: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Up]:
    """`fairlead up` of the project above, once it has printed its address."""
    with running("up", cwd, *arguments, env=env) as process:
        yield process


@contextmanager
def running(command: str, cwd: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Up]:
    """`up`, `api`, `worker` or `manager` of the project above, once it has printed its banner."""
    (cwd / "project.py").write_text(PROJECT, encoding="utf-8")
    port = ("--port", "0") if command in ("up", "api") else ()
    with started((*COMMAND, command, *(arguments or ("project:app",)), *port, "--json"), cwd=cwd, env=env) as process:
        process.banner = json.loads(process.wait_for('"process"'))
        if port:
            process.url = process.banner["urls"]["gateway"][0]
        yield process
