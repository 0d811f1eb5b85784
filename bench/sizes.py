"""The sizes of a run: `make bench` in less than 10 minutes, `make bench-full`, and a smoke test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Seconds bound what a slow system may take; a rate is then over what it did in that time."""

    rounds: int
    minutes: float
    """No further round begins a system after this; everything is measured at least once."""
    enqueue_s: float
    jobs: int
    fill_s: float
    drain_s: float
    latency_jobs: int
    latency_s: float
    end_to_end_s: float
    settle_s: float
    memory_jobs: int
    """0: those of the drain are taken."""
    sleepers: int
    sleepers_s: float
    bulk: int
    newcomer_s: float
    pipelines: int
    waiting: tuple[int, ...]
    users: tuple[int, ...]
    requests: int
    limit_rows: int
    kill_s: float
    kill: tuple[str, ...] | None
    """The systems whose workers are killed; None: all."""


QUICK = Sizes(
    rounds=2,
    minutes=9.0,
    enqueue_s=0.5,
    jobs=20_000,
    fill_s=1.5,
    drain_s=2.0,
    latency_jobs=40,
    latency_s=1.0,
    end_to_end_s=0.7,
    settle_s=1.5,
    memory_jobs=0,
    sleepers=2_000,
    sleepers_s=6.0,
    bulk=2_000,
    newcomer_s=1.5,
    pipelines=100,
    waiting=(1_000, 100_000, 1_000_000),
    users=(10, 1_000, 100_000),
    requests=6_000,
    limit_rows=20_000,
    kill_s=40.0,
    kill=("fairlead", "fairlead-embedded", "pgqueuer", "dbos"),
)
FULL = Sizes(
    rounds=5,
    minutes=600.0,
    enqueue_s=3.0,
    jobs=20_000,
    fill_s=60.0,
    drain_s=90.0,
    latency_jobs=200,
    latency_s=8.0,
    end_to_end_s=4.0,
    settle_s=30.0,
    memory_jobs=100_000,
    sleepers=2_000,
    sleepers_s=60.0,
    bulk=2_000,
    newcomer_s=30.0,
    pipelines=200,
    waiting=(1_000, 100_000, 1_000_000),
    users=(10, 1_000, 100_000),
    requests=20_000,
    limit_rows=60_000,
    kill_s=200.0,
    kill=None,
)
SMOKE = Sizes(
    rounds=1,
    minutes=60.0,
    enqueue_s=0.02,
    jobs=50,
    fill_s=2.0,
    drain_s=20.0,
    latency_jobs=5,
    latency_s=0.1,
    end_to_end_s=0.05,
    settle_s=20.0,
    memory_jobs=0,
    sleepers=50,
    sleepers_s=20.0,
    bulk=60,
    newcomer_s=20.0,
    pipelines=5,
    waiting=(1_000,),
    users=(10, 1_000),
    requests=200,
    limit_rows=2_000,
    kill_s=40.0,
    kill=("fairlead", "fairlead-embedded", "dbos"),
)
