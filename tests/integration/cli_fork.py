"""Starts `fairlead`, or a module of the tests, from a process with all imports done, half a second faster than a fresh
interpreter.

That process forks for each command. The child behaves like a fresh process: it has its own arguments, folder,
environment, input and output. It ends with the tests. (The sample project starts fresh interpreters.)
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

import typer.main

ROOT = Path(__file__).parents[2]
LARGEST = 100_000
KILLED_WITHIN = 30.0
MODULE = "fairlead.cli"
CELERY = "celery"

# ---------------------------------------------------------------- in the test's process


class Forked:
    """The part of `subprocess.Popen` that tests use. `arguments` are those of `fairlead`; with `-m` as the first, they
    are those of the interpreter: `-m tests.crash.files_process FOLDER`. A process of Celery leads a session, as its
    children are killed with it."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: IO[Any] | int = subprocess.DEVNULL,
        stdout: IO[Any],
        stderr: IO[Any],
    ) -> None:
        self._status, theirs = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            given = nothing if isinstance(stdin, int) else stdin.fileno()
            module, words = (arguments[1], arguments[2:]) if list(arguments[:1]) == ["-m"] else (MODULE, arguments)
            request = json.dumps({"module": module, "arguments": [*words], "cwd": str(cwd), "env": dict(env)}).encode()
            assert len(request) < LARGEST
            socket.send_fds(
                _start_forker(CELERY if module == CELERY else MODULE),
                [request],
                [given, stdout.fileno(), stderr.fileno(), theirs],
            )
        finally:
            os.close(nothing)
            os.close(theirs)
        self._said = os.fdopen(self._status, "rb", buffering=0)
        self.pid = int(self._said.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(MODULE, timeout)
        return code

    def _ended(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._said], [], [], timeout)[0]:
            self.returncode = int(self._said.readline())
            self._said.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and wait for its end, so that nothing of it stays open."""
        self.send_signal(signal.SIGKILL)
        self._ended(KILLED_WITHIN)


@cache
def _start_forker(module: str) -> socket.socket:
    """The process that forks this one. It ends with the tests, when this end of the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.cli_fork", str(theirs.fileno()), module],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait(10)

    atexit.register(end)
    return ours


# ---------------------------------------------------------------- in the process that forks


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Return in the child, with its request."""
    child_ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is meant for the tests
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, child_ended], [], [])
        if child_ended in ready:
            os.read(child_ended, 4096)
            _send_exit_codes(children)
        if requests in ready:
            request, fds, _, _ = socket.recv_fds(requests, LARGEST, 4)
            if not request:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                requests.close()
                for number, fd in enumerate(fds[:3]):
                    os.dup2(fd, number)
                for fd in (*fds, *children.values(), child_ended, wake):
                    os.close(fd)
                return dict(json.loads(request))
            children[pid] = fds.pop()
            os.write(children[pid], b"%d\n" % pid)
            for fd in fds:
                os.close(fd)


def _send_exit_codes(children: dict[int, int]) -> None:
    for pid, status in list(children.items()):
        ended, how = os.waitpid(pid, os.WNOHANG)
        if ended:
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(how))
            os.close(status)
            del children[pid]


def _take_over(asked: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when the process that forks ends
    if asked["module"] == CELERY:
        os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.path[:1] = [asked["cwd"], *filter(None, asked["env"].get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [asked["module"], *asked["arguments"]]
    importlib.reload(importlib.import_module("fairlead.failpoints"))  # it reads the environment
    try:
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        _exit_code.append(0)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            _exit_code.append(ended.code or 0)
        raise


_exit_code: list[int] = []


def _leave() -> None:
    """End without the interpreter's own cleanup, which would copy every page that the processes share: half of the time
    of a short command."""
    if _exit_code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code[0])


def _preload_celery() -> None:
    import kombu.transport.redis  # noqa: F401

    import fairlead.celery  # noqa: F401

    _freeze()


def _preload() -> None:
    """Import everything. No module of the command line reads the environment on import, or this would hide it."""
    import httpcore2  # noqa: F401
    import uvloop  # noqa: F401
    from uvicorn.protocols.http import httptools_impl  # noqa: F401

    import fairlead.app
    import fairlead.cli.root
    import fairlead.dispatch.redis.leadership
    import fairlead.dispatch.redis.pubsub
    import fairlead.executors.http
    import fairlead.gateway.app
    import fairlead.store.postgres

    _build_commands_once(fairlead.cli.root.app)
    _freeze()


def _freeze() -> None:
    """Frozen objects are not visited by collections, including the one at exit, which would copy every page."""
    gc.collect()
    gc.freeze()


def _build_commands_once(app: Any) -> None:
    """Typer builds all commands of the application anew for each call, a third of the time of a short command."""
    build, commands = typer.main.get_command, typer.main.get_command(app)
    typer.main.get_command = lambda asked: commands if asked is app else build(asked)


if __name__ == "__main__":
    atexit.register(_leave)  # first, so that it runs last
    _preload_celery() if sys.argv[2] == CELERY else _preload()
    _take_over(_serve(socket.socket(fileno=int(sys.argv[1]))))
