"""Bytes of the store per job, with 100,000 of them waiting. `make bench` has no time for it, and takes them from the
jobs that wait for the drain."""

from __future__ import annotations

from bench.scenarios.visit import Keep
from bench.servers import Servers
from bench.sizes import Sizes
from bench.stage import Stage
from bench.systems import Known


def memory(known: Known, servers: Servers, sizes: Sizes, keep: Keep) -> None:
    if not sizes.memory_jobs:
        return
    with Stage(known, servers) as stage:
        before = stage.store_bytes()
        jobs = stage.ask("fill", count=sizes.memory_jobs, seconds=sizes.fill_s)["count"]
        keep("memory", "bytes", (stage.store_bytes() - before) / jobs)
        keep("memory", "jobs", jobs)
