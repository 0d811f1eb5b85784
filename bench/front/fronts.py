"""The fronts, and how each is started. Every front is one process that listens, and the processes beside it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.cpu import seconds_of
from bench.front.load import KEY
from bench.front.upstream import MODEL
from bench.install import install_python, python_of
from bench.scenarios.http import free_port
from bench.servers import Servers
from bench.system_run import Broken, kill, why
from bench.systems import EMBEDDED, OURS, ROOT
from fairlead import __version__

UPSTREAM = "upstream"
LITELLM = "litellm"
SMG = "smg"
TOGETHER = f"{OURS}-up"
COMING_UP_S = 120.0

LITELLM_CONFIG = f"""
model_list:
  - model_name: {MODEL}
    litellm_params: {{model: openai/{MODEL}, api_base: "URL/v1", api_key: none}}
general_settings: {{master_key: {KEY}}}
litellm_settings: {{set_verbose: false, telemetry: false}}
"""


@dataclass(frozen=True)
class Place:
    """Where a front runs: its folder, its port, the upstream's URL, and the stores."""

    folder: Path
    port: int
    upstream: str
    servers: Servers


@dataclass(frozen=True)
class Start:
    """The command of the process that listens, those of the processes beside it, and their environment."""

    command: list[str]
    beside: list[list[str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Front:
    name: str
    about: str
    start: Callable[[Place], Start] | None
    """None: the upstream itself is measured."""
    venv: str | None = None
    package: str | None = None

    def version(self) -> str:
        """Install the front if it is not. Returns its version. Raises Broken if it cannot be installed."""
        if self.venv is None or self.package is None:
            return "" if self.start is None else __version__
        install_python(self.venv)
        command = [
            str(python_of(self.venv)),
            "-c",
            f"import importlib.metadata as m; print(m.version('{self.package}'))",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Broken("its environment cannot be created") from None
        if done.returncode:
            raise Broken(f"it does not install: {why(done.stderr)}")
        return done.stdout.strip()


def _ours(role: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "fairlead.cli", role, "bench.ours.front:app", "--log-level", "warning", *more]


def _embedded(place: Place) -> Start:
    env = {"BENCH_UPSTREAM": f"{place.upstream}/v1", "BENCH_DATABASE_URL": f"sqlite:///{place.folder}/bench.db"}
    return Start(_ours("up", "--port", str(place.port)), env=env)


def _distributed(place: Place) -> Start:
    return Start(_ours("api", "--port", str(place.port)), [_ours("worker"), _ours("manager")], _engines(place))


def _together(place: Place) -> Start:
    return Start(_ours("up", "--port", str(place.port)), env=_engines(place))


def _engines(place: Place) -> dict[str, str]:
    return {
        "BENCH_UPSTREAM": f"{place.upstream}/v1",
        "BENCH_DATABASE_URL": place.servers.fresh(),
        "BENCH_REDIS_URL": place.servers.redis_url,
    }


def _litellm(place: Place) -> Start:
    config = place.folder / "litellm.yaml"
    config.write_text(LITELLM_CONFIG.replace("URL", place.upstream))
    program = str(python_of("venv-litellm").parent / "litellm")
    return Start([program, "--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)])


def _smg(place: Place) -> Start:
    program = str(python_of("venv-smg").parent / "smg")
    address = ["--host", "127.0.0.1", "--port", str(place.port)]
    metrics = ["--prometheus-port", str(free_port())]
    return Start([program, "launch", *address, *metrics, "--worker-urls", place.upstream, "--log-level", "error"])


FRONTS = {
    front.name: front
    for front in (
        Front(UPSTREAM, "no front: aiohttp on uvloop, one process", None),
        Front(SMG, "keeps nothing; one process, Rust", _smg, "venv-smg", "smg"),
        Front(EMBEDDED, "durable on SQLite; `fairlead up`, one process", _embedded),
        Front(TOGETHER, "durable on PostgreSQL + Redis; `fairlead up`, one process", _together),
        Front(OURS, "durable on PostgreSQL + Redis; `api`, `worker` and `manager`, one process each", _distributed),
        Front(LITELLM, "keeps nothing; one process, Python", _litellm, "venv-litellm", "litellm"),
    )
}


class Running:
    """A front that answers. `gateway` listens; the CPU of both parts is in seconds so far."""

    def __init__(self, url: str, gateway: subprocess.Popen[bytes], beside: list[subprocess.Popen[bytes]]) -> None:
        self.url = url
        self._gateway = gateway
        self._beside = beside

    def cpu(self) -> tuple[float, float]:
        """Of the gateway, and of the processes beside it."""
        beside = {process.pid for process in self._beside}
        return seconds_of({self._gateway.pid}, by_session=True), seconds_of(beside, by_session=True)


@contextlib.contextmanager
def upstream() -> Iterator[Running]:
    port = free_port()
    folder = Path(tempfile.mkdtemp(prefix="fairlead-bench-"))
    command = [sys.executable, "-m", "bench.front.upstream", str(port)]
    with _processes(folder, Start(command)) as (gateway, beside):
        running = Running(f"http://127.0.0.1:{port}", gateway, beside)
        _until_it_answers(running.url, gateway, folder)
        yield running


@contextlib.contextmanager
def started(front: Front, upstream_url: str, servers: Servers) -> Iterator[Running]:
    assert front.start is not None
    folder = Path(tempfile.mkdtemp(prefix="fairlead-bench-"))
    place = Place(folder, free_port(), upstream_url, servers)
    with _processes(folder, front.start(place)) as (gateway, beside):
        running = Running(f"http://127.0.0.1:{place.port}", gateway, beside)
        _until_it_answers(running.url, gateway, folder)
        yield running


@contextlib.contextmanager
def _processes(folder: Path, start: Start) -> Iterator[tuple[subprocess.Popen[bytes], list[subprocess.Popen[bytes]]]]:
    env = {**os.environ, **start.env, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in (start.command, *start.beside):
            processes.append(_process(command, env, folder))  # noqa: PERF401 (a failure must leave the others in the list)
        yield processes[0], processes[1:]
    finally:
        kill(processes)
        shutil.rmtree(folder, ignore_errors=True)


def _process(command: list[str], env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=ROOT, start_new_session=True
        )


def _until_it_answers(url: str, gateway: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + COMING_UP_S
    while True:
        try:
            _chat(url)
            return
        except OSError as error:  # HTTPError is one too
            last = f"{error}"
        if gateway.poll() is not None or time.monotonic() > until:
            raise Broken(f"it does not answer ({last}): {why((folder / 'log').read_text(errors='replace'))[-300:]}")
        time.sleep(0.1)


def _chat(url: str) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "ready?"}]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/chat/completions", body, headers), timeout=30
    ) as response:
        response.read()
