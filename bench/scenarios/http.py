"""POST /api/v1/jobs, one job a request and in bulk, against echoes of the same bare server and framework;
32 connections."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

from bench.scenarios.visit import Keep
from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_run import PATIENCE_S, Broken, Stage
from bench.systems import EMBEDDED, ROOT, Known

CONNECTIONS = 32
BULK = 1000
JOBS = "/api/v1/jobs"
JOB = {"user_id": "ada", "feature_name": "work", "input_data": {"kind": "noop", "number": 1}}
COMING_UP_S = 20.0


def submits(known: Known, servers: Servers, sizes: Sizes, keep: Keep) -> None:
    """The gateway alone, without workers. (Embedded, the same process also runs the jobs.)"""
    with Stage(known, servers) as stage:
        port = start_gateway(stage)
        rate(port, JOBS, sizes.requests // 5, CONNECTIONS, JOB)  # the first requests open connections
        one = rate(port, JOBS, sizes.requests, CONNECTIONS, JOB)
        bulk = rate(port, f"{JOBS}/bulk", max(4, sizes.requests // 200), 4, {"jobs": [JOB] * BULK}) * BULK
        stage.kill_workers()
        echoes = {bare: _echoes(stage, bare, sizes) for bare in ("server", "framework")}
    keep("http", "submits/s", one)
    keep("http", "jobs/s in bulk", bulk)
    for bare, echo in echoes.items():
        keep("http", f"echoes/s of the bare {bare}", echo)
        keep("http", f"submit / echo of the {bare}", one / echo)


def start_gateway(stage: Stage) -> int:
    """Its port."""
    port, role = free_port(), "up" if stage.known.name == EMBEDDED else "api"
    stage.start(f"{sys.executable} -m fairlead.cli {role} bench.ours.app:app --port {port} --log-level warning")
    return port


def start_echo(stage: Stage, bare: str) -> int:
    """Its port. `bare`: server or framework."""
    port = free_port()
    stage.start(f"{sys.executable} -m bench.echo {port} {bare}")
    return port


def _echoes(stage: Stage, bare: str, sizes: Sizes) -> float:
    port = start_echo(stage, bare)
    echoes = rate(port, "/", sizes.requests * 2, CONNECTIONS, JOB)
    stage.kill_workers()
    return echoes


def rate(port: int, path: str, count: int, connections: int, body: object) -> float:
    until_it_listens(port)
    asked = [str(port), path, str(count), str(connections)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.http_client", *asked],
            input=json.dumps(body),
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise Broken(f"{count} requests to {path} took longer than {PATIENCE_S:g} s") from None
    except subprocess.CalledProcessError as error:
        raise Broken(error.stderr.strip().splitlines()[-1]) from None
    return float(done.stdout)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until_it_listens(port: int) -> None:
    until = time.monotonic() + COMING_UP_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise Broken(f"nothing listens on port {port}") from None
            time.sleep(0.05)
