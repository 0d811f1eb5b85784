"""Jobs of four steps of 20 ms, with limits 5, 4, 1 and 1. The steps with one slot determine the ideal."""

from __future__ import annotations

import time

from bench.handlers import KINDS
from bench.scenarios.visit import Keep
from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_port import LIMITS
from bench.system_run import Stage
from bench.systems import Known


def pipeline(known: Known, servers: Servers, sizes: Sizes, keep: Keep) -> None:
    with Stage(known, servers) as stage:
        stage.start_workers("steps")
        stage.ask("steps", count=1)
        stage.wait_for(1)
        begun = time.perf_counter()
        stage.ask("steps", count=sizes.pipelines)
        stage.wait_for(1 + sizes.pipelines)
        seconds = time.perf_counter() - begun
    keep("pipeline", "jobs/s", sizes.pipelines / seconds)
    keep("pipeline", "times ideal", seconds / ideal_s(sizes.pipelines))


def ideal_s(jobs: int) -> float:
    return KINDS["step"].seconds * (jobs / min(LIMITS) + len(LIMITS) - 1)
