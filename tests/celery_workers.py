"""Real Celery workers in separate processes."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from tests.integration.cli_fork import Forked

ROOT = Path(__file__).parents[1]
_START_S = 60.0


class CeleryWorker:
    """A worker for the app `module` (`celery -A`). `with` starts it, waits until it is ready, and kills it."""

    def __init__(
        self, module: str, app: Any, *options: str, pool: str = "prefork", concurrency: int = 2,
        queues: str | None = None, folder: Path = ROOT, **environment: str,
    ) -> None:  # fmt: skip
        self.name = f"test-{uuid4().hex[:8]}@localhost"
        self._app = app
        self._command = [
            "-m", "celery", "-A", module, "worker", "--pool", pool, "--concurrency", str(concurrency),
            "--hostname", self.name, "--without-gossip", "--without-mingle", "--loglevel", "INFO", *options,
            *(() if queues is None else ("--queues", queues)),
        ]  # fmt: skip
        path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "src")])
        self._environment = {**os.environ, "PYTHONPATH": path, **environment}
        self._folder = folder
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: Forked | None = None

    def start(self) -> Self:
        self._process = Forked(
            self._command, env=self._environment, cwd=self._folder, stdout=self._log, stderr=self._log
        )
        deadline = time.monotonic() + _START_S
        while not self._app.control.ping(destination=[self.name], timeout=0.3, limit=1):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.log)
        return self

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def children(self) -> list[int]:
        """The processes that run the tasks."""
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in listed.stdout.split()]

    def kill(self) -> None:
        """Kill the worker and its children, as the loss of its machine would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """Warm shutdown: running tasks finish."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._log.close()


def let_go() -> None:
    """Collect connections that kombu leaves open, or they would be reported during another test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextlib.contextmanager
def closed(app: Any) -> Iterator[Any]:
    """Close the connections of a test's Celery app at the end, or they would be reported as leaked."""
    try:
        yield app
    finally:
        app.close()
        app.pool.force_close_all()
        with contextlib.suppress(Exception):
            app.backend.client.close()
