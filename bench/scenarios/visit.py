"""Enqueue, memory, drain, latency, end to end: one visit to a system, with one start of its workers.

The enqueued jobs are drained; the drained system is idle, so its latency is measured next; then a producer and the
workers run at once. A system that is not drained in time gets an empty store for the last two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Set

from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_run import Stage
from bench.systems import Known

SCENARIOS = frozenset({"enqueue", "memory", "drain", "latency", "end_to_end"})
IDLE = frozenset({"latency", "end_to_end"})
ONE_BY_ONE = (("one by one", 1, 0.5), ("100 callers", 100, 1.5))
"""Figure, callers, and how many times the drain's jobs they may take in. Fewer would cut short who is still warming up:
bullmq was a tenth slower in 10,000 jobs than in 24,000."""
IN_BULK = 0.25
"""At least this part of the drain's jobs is enqueued in bulk: a rate of a few jobs would say nothing."""
Keep = Callable[[str, str, float], None]
"""keep(scenario, figure, value)"""


def visit(known: Known, servers: Servers, sizes: Sizes, wanted: Set[str], keep: Keep) -> None:
    wanted = wanted & known.scenarios
    idle = False
    if wanted - IDLE:
        with Stage(known, servers) as stage:
            waiting = fill(stage, sizes, wanted, keep)
            if "drain" in wanted:
                idle = drain(stage, sizes, waiting, keep)
            if idle and wanted & IDLE:
                on_idle(stage, sizes, wanted, keep)
    if wanted & IDLE and not idle:
        with Stage(known, servers) as stage:
            stage.start_workers("fast")
            stage.ask("one", kind="noop", number=0, user="ada")
            stage.wait_for(1)
            time.sleep(1.0)  # the other processes
            on_idle(stage, sizes, wanted, keep)


def fill(stage: Stage, sizes: Sizes, wanted: Set[str], keep: Keep) -> int:
    """The number of waiting jobs."""
    before = stage.store_bytes()
    waiting = 0
    if "enqueue" in wanted:
        for figure, callers, share in ONE_BY_ONE:
            took = stage.ask("enqueue", seconds=sizes.enqueue_s, callers=callers, at_most=int(sizes.jobs * share))
            keep("enqueue", figure, (took["count"] - 1) / took["seconds"])
            waiting += int(took["count"])
    left = max(int(sizes.jobs * IN_BULK), sizes.jobs - waiting)
    took = stage.ask("fill", count=left, seconds=sizes.fill_s)
    waiting += int(took["count"])
    if "enqueue" in wanted and stage.about["bulk"]:
        keep("enqueue", "bulk", took["count"] / took["seconds"])
    if "memory" in wanted and not sizes.memory_jobs:
        keep("memory", "bytes", (stage.store_bytes() - before) / waiting)
        keep("memory", "jobs", waiting)
    return waiting


def drain(stage: Stage, sizes: Sizes, waiting: int, keep: Keep) -> bool:
    """From the first job's end to the last one's settlement in the store. True if all were done in time."""
    spawned = time.perf_counter()
    stage.start_workers("fast")
    stage.wait_for(1)
    first, begun, spent = stage.done(), time.perf_counter(), stage.cpu()
    while (done := stage.done()) < waiting and time.perf_counter() - begun < sizes.drain_s:
        time.sleep(0.002)
    stage.check()
    if done >= waiting:
        stage.wait_until_settled(begun + sizes.drain_s + sizes.settle_s)
        keep("drain", "jobs/s with the start", waiting / (time.perf_counter() - spawned))
    keep("drain", "jobs/s", (done - first) / (time.perf_counter() - begun))
    keep("drain", "jobs", waiting)
    for part, seconds in stage.cpu().items():
        keep("drain", f"CPU of {part}", (seconds - spent[part]) * 1e6 / max(1, done - first))
    return done >= waiting


def on_idle(stage: Stage, sizes: Sizes, wanted: Set[str], keep: Keep) -> None:
    if "latency" in wanted:
        waits = sorted(stage.ask("latency", count=sizes.latency_jobs, seconds=sizes.latency_s)["ms"])
        keep("latency", "p50 ms", statistics.median(waits))
        keep("latency", "p99 ms", waits[int(len(waits) * 0.99)])
    if "end_to_end" in wanted:
        end_to_end(stage, sizes, keep)


def end_to_end(stage: Stage, sizes: Sizes, keep: Keep) -> None:
    before, begun = stage.done(), time.perf_counter()
    callers = 100 if stage.about["callers"] == "tasks" else 8
    accepted = stage.ask("enqueue", seconds=sizes.end_to_end_s, callers=callers)["count"]
    until = time.perf_counter() + sizes.settle_s
    while stage.done() - before < accepted and time.perf_counter() < until:
        time.sleep(0.002)
    stage.check()
    if stage.done() - before >= accepted:
        stage.wait_until_settled(until)
    keep("end_to_end", "jobs/s", (stage.done() - before) / (time.perf_counter() - begun))
