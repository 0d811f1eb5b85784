"""CPU time of a submit over HTTP, by part, and of an echo by the bare server. Other programs disturb CPU time little.

    python -m bench.http_cpu [--embedded] [--connections 32] [--requests 6000] [--runs 5]

In microseconds for one request, the lowest of several runs, with the requests per second of that run. The client's own
cost is in none of them.
"""

from __future__ import annotations

import argparse

from bench.scenarios.http import CONNECTIONS, JOB, JOBS, rate, start_echo, start_gateway
from bench.servers import Servers
from bench.system_run import Stage
from bench.systems import EMBEDDED, OURS, SYSTEMS

PARTS = {"server": "workers", "PostgreSQL": "PostgreSQL", "Redis": "Redis"}
"""The name in the output, and the name of the stage."""


def cost(stage: Stage, port: int, path: str, asked: argparse.Namespace) -> str:
    """The cheapest run, per request."""
    rate(port, path, asked.requests // 5, asked.connections, JOB)  # the first requests open connections
    runs = []
    for _ in range(asked.runs):
        before = stage.cpu()
        per_second = rate(port, path, asked.requests, asked.connections, JOB)
        after = stage.cpu()
        runs.append(({name: after[part] - before[part] for name, part in PARTS.items()}, per_second))
    spent, per_second = min(runs, key=lambda run: run[0]["server"])
    micros = {name: round(seconds * 1e6 / asked.requests) for name, seconds in spent.items()}
    costs_text = ", ".join(f"{name} {each} µs" for name, each in micros.items() if each)
    return f"{costs_text} ({per_second:,.0f}/s)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    with Stage(SYSTEMS[EMBEDDED if asked.embedded else OURS], Servers()) as stage:
        print("submit:", cost(stage, start_gateway(stage), JOBS, asked))
        stage.kill_workers()
        print("echo:", cost(stage, start_echo(stage, "server"), "/", asked))


if __name__ == "__main__":
    main()
