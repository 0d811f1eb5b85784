"""Five new users with one job each, behind one user's bulk, on 4 slots: how many grants precede each of them?

If a newcomer has not started before the timeout, the grants until then are a lower bound, and `still waiting` counts
such newcomers.
"""

from __future__ import annotations

import time

from bench import handlers
from bench.scenarios.visit import Keep
from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_run import Stage
from bench.systems import Known

NEWCOMERS = 5
FIRST = 1_000_000
SLOTS = 4


def newcomer(known: Known, servers: Servers, sizes: Sizes, keep: Keep) -> None:
    with Stage(known, servers) as stage:
        stage.start_workers("narrow")
        stage.ask("one", kind="noop", number=0, user="first")
        stage.wait_for(1)
        stage.ask("fill", count=sizes.bulk, seconds=30, kind="turn", user="bulk")
        came = {}
        for number in range(FIRST, FIRST + NEWCOMERS):
            time.sleep(0.05)
            came[number] = stage.ask("one", kind="turn", number=number, user=f"newcomer-{number}")["at"]
        until = time.perf_counter() + sizes.newcomer_s
        while time.perf_counter() < until:
            time.sleep(0.02)
            if came.keys() <= {number for number, _ in handlers.starts(stage.folder)}:
                break
        starts = handlers.starts(stage.folder)
        stage.check()
    began = dict(starts)
    waits, grants = [], []
    for number, at in came.items():
        until_ns = began.get(number, starts[-1][1])
        waits.append(max(0.0, (until_ns - at) / 1e9))
        grants.append(sum(1 for other, start in starts if other < FIRST and at < start < until_ns))
    keep("newcomer", "grants before it, most", max(grants))
    keep("newcomer", "wait s, longest", max(waits))
    keep("newcomer", "still waiting", len(came.keys() - began.keys()))
