"""Footnotes of the tables in bench/RESULTS.md: the number of jobs, and which figures are missing and why."""

from __future__ import annotations

from collections.abc import Callable

from bench.results import Results
from bench.scenarios.memory import BYTES_OF_A_MILLION
from bench.scenarios.newcomer import NEWCOMERS
from bench.scenarios.pipeline import ideal_s
from bench.sizes import FULL, QUICK, SMOKE, Sizes
from bench.systems import EMBEDDED, OURS, SYSTEMS


def remark(results: Results, scenario: str, figure: str) -> str:
    """Empty if the heading is sufficient."""
    make = _REMARKS.get((scenario, figure))
    text = make(results) if make else ""
    return f"{text}\n\n" if text else ""


def sizes_of(results: Results) -> Sizes:
    return {"full": FULL, "smoke": SMOKE}.get(results.run.get("sizes", ""), QUICK)


def _bulk(results: Results) -> str:
    without = [name for name, about in results.about.items() if not about["bulk"]]
    return f"Without a bulk call: {', '.join(without)}." if without else ""


def _drain(results: Results) -> str:
    wanted = sizes_of(results).jobs
    counts = {name: results.median("drain", name, "jobs") or wanted for name in results.about}
    other = [f"{name} of {count:,.0f}" for name, count in counts.items() if not 0.99 < count / wanted < 1.01]
    return f"Of {wanted:,} jobs" + (f", but {', '.join(other)}, as many as were enqueued in time." if other else ".")


def _with_the_start(results: Results) -> str:
    return f"Only systems that completed all jobs within {sizes_of(results).drain_s:g} s."


def _p99(results: Results) -> str:
    jobs = sizes_of(results).latency_jobs
    return (
        f"Of {jobs} jobs a round, or fewer for slow systems; with fewer than 100 it is the maximum."
        if jobs < 100
        else ""
    )


def _memory(results: Results) -> str:
    counts = [count for key, values in results.values.items() if key[0::2] == ("memory", "jobs") for count in values]
    between = " to ".join(f"{count:,.0f}" for count in sorted({min(counts), max(counts)})) if counts else "some"
    text = f"With {between} waiting jobs, as many as were enqueued in time."
    for name in (OURS, EMBEDDED):
        if million := results.median("memory", name, BYTES_OF_A_MILLION):
            text += f" {name} with {results.median('memory', name, 'jobs of the million'):,.0f}: {million:,.0f}."
    return text


def _pipeline(results: Results) -> str:
    count = sizes_of(results).pipelines
    return f"Ideal: {count / ideal_s(count):.1f}, given by the steps with one slot."


def _newcomer(results: Results) -> str:
    patience = sizes_of(results).newcomer_s
    return (
        f"Of {NEWCOMERS} newcomers, the one with the most. `or more`: one had not started after {patience:g} s, so a "
        "slow system has a small figure."
    )


def _kill(results: Results) -> str:
    measured = {name for scenario, name, _ in results.values if scenario == "kill"}
    absent = [name for name in results.about if "kill" in SYSTEMS[name].scenarios and name not in measured]
    text = (
        "A new worker starts at once, on the same machine, where ours notices that its neighbour is gone. When the "
        "machine itself is lost, ours takes up to lease_ttl + 1 s."
    )
    return text + (f" Not measured in this run: {', '.join(absent)}; `make bench-full` does." if absent else "")


_REMARKS: dict[tuple[str, str], Callable[[Results], str]] = {
    ("enqueue", "bulk"): _bulk,
    ("drain", "jobs/s"): _drain,
    ("drain", "jobs/s with the start"): _with_the_start,
    ("latency", "p99 ms"): _p99,
    ("memory", "bytes"): _memory,
    ("pipeline", "jobs/s"): _pipeline,
    ("newcomer", "grants before it, most"): _newcomer,
    ("kill", "s until it runs again"): _kill,
}
