"""One system on an empty store: its producer, its workers, and measurements of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

from bench import handlers
from bench.cpu import seconds_of
from bench.servers import Servers, postgres_bytes, redis_bytes
from bench.system_port import LIMITS
from bench.systems import EMBEDDED, ROOT, Known

PATIENCE_S = 90.0


class Broken(Exception):
    """The system failed; the benchmark continues without this figure."""


def describe(known: Known, servers: Servers) -> dict[str, Any]:
    """The description of a system, without an empty store for it. Raises Broken if it is not installed."""
    env = _environment(known, "postgresql://127.0.0.1/none", servers.redis_url, Path("/nonexistent"))
    if shutil.which(known.producer[0]) is None:
        raise Broken("its interpreter is not installed")
    try:
        done = subprocess.run(
            known.producer,
            input='{"do": "describe"}\n',
            capture_output=True,
            text=True,
            env=env,
            cwd=ROOT,
            check=False,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise Broken(f"it does not describe itself within {PATIENCE_S:g} s") from None
    try:
        about: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    except (ValueError, IndexError):
        raise Broken(why(done.stderr)) from None
    if "error" in about:
        raise Broken(about["error"])
    return about


def why(output: str) -> str:
    """Find the error in an interpreter's output: the last line for Python; Node prints its version after it."""
    lines = output.strip().splitlines() or ["no output"]
    return next((line for line in reversed(lines) if re.match(r"\w*Error\b", line)), lines[-1])


def _environment(known: Known, database: str, redis_url: str, folder: Path) -> dict[str, str]:
    embedded = known.name == EMBEDDED
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "BENCH_FOLDER": str(folder),
        "BENCH_DATABASE_URL": f"sqlite:///{folder}/bench.db?switch_interval=short" if embedded else database,
        "BENCH_REDIS_URL": "" if embedded else redis_url,
    }


class Stage:
    def __init__(self, known: Known, servers: Servers, *, beside_others: bool = False) -> None:
        self.known = known
        self.folder = Path(tempfile.mkdtemp(prefix="fairlead-bench-"))
        self._servers = servers
        self._beside_others = beside_others
        self._beside: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._producers: list[subprocess.Popen[str]] = []
        """The one, once it was started."""

    def __enter__(self) -> Stage:
        """Start everything that can fail or be interrupted, so that it is cleaned up."""
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def _set_up(self) -> None:
        servers, commit = self._servers, self.known.synchronous_commit
        self._database = servers.another() if self._beside_others else servers.fresh(commit)
        self._env = _environment(self.known, self._database, servers.redis_url, self.folder)
        self._env["TMPDIR"] = str(self.folder)  # a killed process does not clean up
        with (self.folder / "log").open("ab") as log:
            producer = subprocess.Popen(
                self.known.producer,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._env,
                cwd=ROOT,
                start_new_session=True,
            )
        self._producers.append(producer)
        self.about = self.ask("describe")
        self.ask("setup")
        self._beside = [self._start(command, {}) for command in self.about["beside"]]
        self.ask("open")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.kill_workers()
        kill([*self._beside, *self._producers])
        for producer in self._producers:
            for pipe in (producer.stdin, producer.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # commands that it did not read
                        pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------ the producer

    def ask(self, command: str, **options: Any) -> dict[str, Any]:
        (producer,) = self._producers
        assert producer.stdin is not None
        assert producer.stdout is not None
        patience = PATIENCE_S + options.get("seconds", 0.0)
        try:
            producer.stdin.write(json.dumps({"do": command, **options}) + "\n")
            producer.stdin.flush()
            if not select.select([producer.stdout], [], [], patience)[0]:
                raise Broken(f"{command}: no answer within {patience:g} s: {self.last_words()}")
            line = producer.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise Broken(f"{command}: the producer is gone: {self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Broken(f"{command}: {answer['error']}")
        return answer

    def last_words(self) -> str:
        lines = (self.folder / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1][-300:] if lines else "no output"

    # ------------------------------------------------------------ the workers

    def start_workers(self, use: str) -> None:
        workers = self.about["workers"][use]
        if not workers["command"]:
            self.ask("work", use=use)
            return
        processes = workers["processes"] if self.known.processes is None else self.known.processes
        for number in range(processes):
            command = workers["command"].format(i=number, limit=LIMITS[number % len(LIMITS)])
            self._workers.append(self._start(command, {**workers["env"], "BENCH_PROCESS": str(number)}))

    def start(self, command: str) -> None:
        """Another process of the system, which ends with its workers."""
        self._workers.append(self._start(command, {}))

    def _start(self, command: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._env, **env},
                cwd=ROOT,
                start_new_session=True,
            )

    def kill_workers(self) -> None:
        kill(self._workers)
        self._workers = []

    # ------------------------------------------------------------ measurements

    def done(self) -> int:
        return handlers.done(self.folder)

    def left(self) -> int:
        """Jobs that the store does not show as settled."""
        left = self.about["left"]
        if self.about["store"] == "redis":
            redis: Any = self._servers.redis
            return sum(int(redis.execute_command(*command.split())) for command in left)
        if self.about["store"] == "sqlite":
            with sqlite3.connect(f"file:{self.folder}/bench.db?mode=ro", uri=True) as reader:
                return int(reader.execute(left[0]).fetchone()[0])
        with psycopg.connect(self._database) as connection:
            found = connection.execute(left[0]).fetchone()
        return int(found[0]) if found else 0

    def store_bytes(self) -> int:
        if self.about["store"] == "redis":
            return redis_bytes(self._servers.redis)
        if self.about["store"] == "sqlite":
            return sum(file.stat().st_size for file in self.folder.glob("bench.db*"))
        ours = redis_bytes(self._servers.redis) if self.about["beside"] else 0
        return postgres_bytes(self._database) + ours

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU so far, by part."""
        return {
            "PostgreSQL": seconds_of({self._servers.postgres_pid}),
            "Redis": self._servers.redis_cpu(),
            "workers": seconds_of({process.pid for process in self._workers}, by_session=True),
            "others": seconds_of({process.pid for process in [*self._beside, *self._producers]}, by_session=True),
        }

    def check(self) -> None:
        """Raise Broken if a process of the system has exited, since the rest is not what should be measured."""
        for process in [*self._beside, *self._workers]:
            if process.poll() is not None:
                raise Broken(f"a worker ended by itself with {process.returncode}: {self.last_words()}")

    def wait_for(self, count: int, patience: float = PATIENCE_S) -> None:
        until = time.perf_counter() + patience
        while self.done() < count:
            self.check()
            if time.perf_counter() > until:
                raise Broken(f"{self.done()} of {count} jobs after {patience:g} s: {self.last_words()}")
            time.sleep(0.002)

    def wait_until_settled(self, until: float) -> None:
        while self.left() and time.perf_counter() < until:
            time.sleep(0.002)


def kill(processes: list[subprocess.Popen[Any]]) -> None:
    """Kill the processes with their sessions, so that no forked child survives."""
    sessions = {process.pid for process in processes}
    for pid in [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) in sessions:
                os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.wait()
