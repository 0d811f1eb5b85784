"""A child process of the harness that logs to a file, can be signalled, and ends with the harness."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.integration.cli_fork import Forked
from tests.integration.cli_process import COMMAND

END_S = 30.0
TAIL = 6000

# Loaded here because nothing may be imported between fork and exec.
_PRCTL: Any = getattr(ctypes.CDLL(None), "prctl", None)


def _die_with_parent() -> None:
    """End the process with its parent, however the test run ends. (The kernel watches the thread that started it.)"""
    if _PRCTL is not None:
        _PRCTL(1, signal.SIGKILL)


def free_port() -> int:
    """A free loopback port below the range of outgoing connections, so that it is still free when a killed process
    restarts."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(12_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """One command with a name and a log, which can be started repeatedly."""

    def __init__(
        self, name: str, command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, log: Path
    ) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self._command = tuple(command)
        self._cwd = cwd
        self._env = dict(os.environ if env is None else env)
        self._process: Forked | subprocess.Popen[bytes] | None = None
        self._killed = False

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def gave_up(self) -> bool:
        """It exited, and not by SIGKILL."""
        return not self._killed and self.code is not None and self.code >= 0

    @property
    def paused(self) -> bool:
        """Whether the kernel reports it as stopped by SIGSTOP."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Start it. `env` applies to this start only."""
        assert not self.alive, f"{self.name} runs already"
        self.starts += 1
        self._killed = False
        with self.log.open("ab") as log:
            log.write(f"---- {self.name}, start {self.starts}\n".encode())
            log.flush()
            self._process = self._started(log, {**self._env, **(env or {})})

    def _started(self, log: IO[bytes], env: dict[str, str]) -> Forked | subprocess.Popen[bytes]:
        if self._command[: len(COMMAND)] == COMMAND:
            return Forked(self._command[len(COMMAND) :], cwd=self._cwd, env=env, stdout=log, stderr=log)
        return subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
        )

    def signal(self, number: signal.Signals) -> None:
        if self.alive and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, which works for a paused process too, and wait for the end."""
        self._killed = True
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(END_S)

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    def tail(self) -> str:
        text = self.log.read_bytes()[-TAIL:].decode(errors="replace") if self.log.exists() else ""
        state = "running" if self.alive else f"ended with {self.code}"
        return f"==== {self.name}, {state} ({self.log})\n{text}"


def until_listening(process: Process, port: int, patience: float = END_S) -> None:
    """Wait for a server of the harness, which starts so fast that blocking the event loop is fine."""
    deadline = time.monotonic() + patience
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if not process.alive or time.monotonic() > deadline:
            raise RuntimeError(process.tail())
        time.sleep(0.01)
