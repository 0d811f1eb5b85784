"""The measurements of one front."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from bench.front.fronts import Running
from bench.results import Results
from bench.system_run import Broken
from bench.systems import ROOT

ONE, MANY, READERS = "1 connection", "32 connections", "100 readers"
FIRST_TOKEN = "first token"
CONNECTIONS, STREAMS, TOKENS = 32, 100, 50
SHORT_STREAM = 2
"""Tokens of the streams whose first token is measured."""
OTHERWISE_S = 60.0


@dataclass(frozen=True)
class Seconds:
    """How long each measurement takes."""

    warm_up: float
    requests: float
    streams: float


def measure(name: str, front: Running, seconds: Seconds, results: Results) -> None:
    _load(front, CONNECTIONS, seconds.warm_up)
    _load(front, CONNECTIONS, seconds.warm_up, SHORT_STREAM)
    one = _load(front, 1, seconds.requests)
    _keep(results, ONE, name, one, "requests/s", "p50 ms", "p99 ms")
    many = _load(front, CONNECTIONS, seconds.requests)
    _keep(results, MANY, name, many, "requests/s", "p50 ms", "p99 ms", "µs of the gateway", "µs of the rest")
    first = _load(front, 1, seconds.requests, SHORT_STREAM)
    _keep(results, FIRST_TOKEN, name, first, "first token p50 ms", "first token p99 ms")
    streams = _load(front, STREAMS, seconds.streams, TOKENS)
    _keep(results, READERS, name, streams, "chunks/s", "chunks/s per core", "first token p50 ms")


def _keep(results: Results, scenario: str, name: str, found: dict[str, Any], *figures: str) -> None:
    if found["failed"]:
        what = max(found["failed"], key=found["failed"].get)
        results.failed[f"{name}, {scenario}"] = f"{sum(found['failed'].values())} requests, most by {what}"
    for figure in figures:
        if found.get(figure) is not None:
            results.keep(scenario, name, figure, found[figure])


def _load(front: Running, connections: int, seconds: float, tokens: int | None = None) -> dict[str, Any]:
    """What the load reports, and the CPU of the front meanwhile."""
    command = [sys.executable, "-m", "bench.front.load", f"{front.url}/v1/chat/completions"]
    command += [str(connections), str(seconds), *(["--stream", str(tokens)] if tokens else [])]
    before = front.cpu()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=seconds + OTHERWISE_S
        )
    except subprocess.TimeoutExpired:
        raise Broken(f"{connections} connections did not end {OTHERWISE_S:g} s after their time") from None
    except subprocess.CalledProcessError as error:
        raise Broken(error.stderr.strip().splitlines()[-1]) from None
    gateway, rest = (now - then for now, then in zip(front.cpu(), before, strict=True))
    found: dict[str, Any] = json.loads(done.stdout)
    if found["requests"]:
        found["µs of the gateway"] = gateway / found["requests"] * 1e6
        found["µs of the rest"] = rest / found["requests"] * 1e6
    if found["chunks"] and gateway:
        found["chunks/s per core"] = found["chunks"] / gateway
    return found
