"""A real process of the harness: its output goes to a file, its signals go to its pid, and it ends with us."""

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
from typing import Any

END_S = 30.0
TAIL = 6000

# Loaded here and not between fork and exec, where nothing may be imported.
_PRCTL: Any = getattr(ctypes.CDLL(None), "prctl", None)


def _die_with_parent() -> None:
    """However the test run ends, nobody is left behind. (The kernel means the thread that started it: the main one.)"""
    if _PRCTL is not None:
        _PRCTL(1, signal.SIGKILL)


def free_port() -> int:
    """A loopback port that nobody listens on, below those that the kernel gives to outgoing connections: so it is still
    free when a process that was killed comes back to it."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(12_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """One name, one command, one log; started as often as it takes."""

    def __init__(
        self, name: str, command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None, log: Path
    ) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self._command = tuple(command)
        self._cwd = cwd
        self._env = dict(os.environ if env is None else env)
        self._process: subprocess.Popen[bytes] | None = None
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
        """How it ended: negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def gave_up(self) -> bool:
        """It ended, nobody killed it, and it did not kill itself."""
        return not self._killed and self.code is not None and self.code >= 0

    @property
    def paused(self) -> bool:
        """Stopped by SIGSTOP, as the kernel says."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """`env` is for this start only."""
        assert not self.alive, f"{self.name} runs already"
        self.starts += 1
        self._killed = False
        with self.log.open("ab") as log:
            log.write(f"---- {self.name}, start {self.starts}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env={**self._env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            )

    def signal(self, number: signal.Signals) -> None:
        if self.alive and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, which a paused process obeys too; returns when it is gone."""
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
        said = self.log.read_bytes()[-TAIL:].decode(errors="replace") if self.log.exists() else ""
        state = "running" if self.alive else f"ended with {self.code}"
        return f"==== {self.name}, {state} ({self.log})\n{said}"


def until_listening(process: Process, port: int, patience: float = END_S) -> None:
    """For servers of the harness itself, which are there in an instant; the event loop may wait for that."""
    deadline = time.monotonic() + patience
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if not process.alive or time.monotonic() > deadline:
            raise RuntimeError(process.tail())
        time.sleep(0.01)
