"""2,000 waiting jobs of 0.1 s, at most 500 at once: ideally 0.4 s."""

from __future__ import annotations

import time

from bench.handlers import KINDS
from bench.scenarios.visit import Keep
from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_run import Stage
from bench.systems import Known

AT_ONCE = 500


def sleepers(known: Known, servers: Servers, sizes: Sizes, keep: Keep) -> None:
    """The clock starts with the first job: 0.1 s before its end."""
    one = KINDS["sleep"].seconds
    with Stage(known, servers) as stage:
        jobs = stage.ask("fill", count=sizes.sleepers, seconds=sizes.sleepers_s, kind="sleep")["count"]
        stage.start_workers("sleep")
        stage.wait_for(1)
        begun = time.perf_counter() - one
        while (done := stage.done()) < jobs and time.perf_counter() - begun < sizes.sleepers_s:
            time.sleep(0.002)
        seconds = (time.perf_counter() - begun) * jobs / done
        stage.check()
    keep("sleepers", "s", seconds)
    keep("sleepers", "times ideal", seconds / (-(-jobs // AT_ONCE) * one))
