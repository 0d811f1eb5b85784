"""Bytes of the store per job, with 100,000 waiting jobs, and for ours with 1,000,000. `make bench` has no time for
this, and measures the jobs that wait for the drain."""

from __future__ import annotations

from bench.scenarios.visit import Keep
from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_run import Stage
from bench.systems import EMBEDDED, OURS, Known

MILLION, MILLION_S = 1_000_000, 300.0
BYTES_OF_A_MILLION = "bytes, 1,000,000 waiting"


def memory(known: Known, servers: Servers, sizes: Sizes, keep: Keep) -> None:
    with Stage(known, servers) as stage:
        before = stage.store_bytes()
        jobs = stage.ask("fill", count=sizes.memory_jobs, seconds=sizes.fill_s)["count"]
        keep("memory", "bytes", (stage.store_bytes() - before) / jobs)
        keep("memory", "jobs", jobs)
        if known.name in (OURS, EMBEDDED):
            million = jobs + stage.ask("fill", count=MILLION - jobs, seconds=MILLION_S)["count"]
            keep("memory", BYTES_OF_A_MILLION, (stage.store_bytes() - before) / million)
            keep("memory", "jobs of the million", million)
