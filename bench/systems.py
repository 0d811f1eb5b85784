"""The systems, their producers, and the scenarios they take part in."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
INSTALLED = HERE / ".peers"
NODE = HERE / "peers" / "node"

OURS, EMBEDDED = "fairlead", "fairlead-embedded"

SCENARIOS = {
    "enqueue": "jobs taken in: one by one, by 100 callers at once, in bulk",
    "drain": "20,000 no-op jobs that wait already",
    "end_to_end": "no-op jobs, a producer and the workers at once",
    "latency": "submit to start on an idle system",
    "memory": "bytes of the store per queued job",
    "sleepers": "2,000 jobs of 0.1 s, 500 at once",
    "newcomer": "a newcomer behind one user's bulk of 2,000",
    "pipeline": "four steps with limits 5, 4, 1 and 1",
    "scale": "the dispatcher's cost per operation as backlog and users grow",
    "http": "POST /api/v1/jobs against the same server's echo",
    "kill": "until a job runs again after SIGKILL of its worker, defaults",
    "limits": "what PostgreSQL, SQLite and Redis do here without us",
}
OF_PARTS = frozenset({"scale", "limits"})
"""Of parts of ours, not of a system as a whole."""
COMMON = frozenset({"enqueue", "drain", "end_to_end", "latency", "memory", "sleepers", "newcomer", "kill"})


@dataclass(frozen=True)
class Known:
    """One system. `processes` and `synchronous_commit` are for the variants of ours."""

    name: str
    producer: tuple[str, ...]
    scenarios: frozenset[str] = COMMON
    family: str = ""
    """python-redis, python-postgres, node: the rows of the targets; empty for ours."""
    processes: int | None = None
    synchronous_commit: str = "on"


def _python(name: str, family: str, scenarios: frozenset[str] = COMMON, venv: str = "venv") -> Known:
    python = INSTALLED / venv / "bin" / "python"
    return Known(name, (str(python), "-m", "bench.producer", f"peers.{name}"), scenarios, family)


def _node(name: str) -> Known:
    return Known(name, ("node", str(NODE / f"{name}.js"), "producer"), family="node")


def _ours(name: str, module: str, scenarios: frozenset[str], processes: int | None = None, commit: str = "on") -> Known:
    producer = (sys.executable, "-m", "bench.producer", f"ours.{module}")
    return Known(name, producer, scenarios, "", processes, commit)


# In the order of a round: if there is no time for a whole second round, the slowest systems have one value.
SYSTEMS = {
    known.name: known
    for known in (
        _ours(OURS, "distributed", COMMON | OF_PARTS | {"pipeline", "http"}),
        _node("graphile-worker"),
        _node("pg-boss"),
        _node("bullmq"),
        _python("pgqueuer", "python-postgres"),
        _ours(EMBEDDED, "embedded", COMMON | OF_PARTS | {"pipeline", "http"}),
        _python("dramatiq", "python-redis"),
        _python("huey", "python-redis"),
        _python("taskiq", "python-redis"),
        _python("saq", "python-redis", venv="venv-saq"),
        _ours("fairlead-1", "distributed", frozenset({"drain"}), 1),
        _ours("fairlead-4", "distributed", frozenset({"drain"}), 4),
        _ours("fairlead-1-async", "distributed", frozenset({"drain"}), 1, "off"),
        _ours("fairlead-2-async", "distributed", frozenset({"drain"}), 2, "off"),
        _ours("fairlead-4-async", "distributed", frozenset({"drain"}), 4, "off"),
        _python("celery", "python-redis", COMMON | {"pipeline"}),
        _python("arq", "python-redis", venv="venv-arq"),
        _python("procrastinate", "python-postgres"),
        _python("dbos", "python-postgres"),
        _python("rq", "python-redis", COMMON - {"sleepers"}),
    )
}
