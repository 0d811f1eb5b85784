"""The benchmark of the embedded line, in one command: each scenario alone, in a process of its own, repeated.

    python bench/run.py [SCENARIO ...] [--repeat N] [--quick] [--write]

Progress goes to stderr, the tables to stdout; --write puts them into bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
SCENARIOS = ["submit_single", "submit_bulk", "end_to_end", "drain", "idle_latency", "sleepers", "over_http", "memory"]
ONCE = {"memory"}
TARGETS = {
    "no-op jobs end to end (jobs/s)": "at least 5,000",
    "idle latency, submit to start, p50 (ms)": "below 3",
    "2,000 x 0.1 s at 500 (s; ideal 0.4)": "at most 1.3 x ideal",
    "memory per waiting job at 1,000,000 (bytes)": "below 1,024",
    "HTTP submit / echo": "at least 0.4",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join([*SCENARIOS, "dispatcher"]))
    parser.add_argument("--repeat", type=int, default=3, help="times each scenario is run; the median is shown")
    parser.add_argument("--quick", action="store_true", help="once each, without the million")
    parser.add_argument("--write", action="store_true", help="write bench/RESULTS.md")
    given = parser.parse_args()
    chosen = given.scenarios or [*SCENARIOS, "dispatcher"]
    if unknown := set(chosen) - {*SCENARIOS, "dispatcher"}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if given.quick:
        chosen = [name for name in chosen if name != "memory"]
    parts = [heading(), table(chosen, 1 if given.quick else given.repeat)]
    if "dispatcher" in chosen:
        parts.append(dispatcher(given.quick))
    text = "\n".join(parts)
    print(text)
    if given.write:
        (HERE / "RESULTS.md").write_text(text, encoding="utf-8")


def table(chosen: list[str], repeat: int) -> str:
    """FULL and NORMAL in turn, so that what else the machine does hits both alike."""
    seen: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(repeat):
        for name in [name for name in SCENARIOS if name in chosen]:
            if name in ONCE and turn:
                continue
            for synchronous in ["full"] if name in ONCE else ["full", "normal"]:
                print(f"{turn + 1}/{repeat} {name}, synchronous={synchronous} ...", file=sys.stderr, flush=True)
                for label, value in measured(name, synchronous).items():
                    seen[label][synchronous].append(value)
    rows = ["| what | FULL, median | spread | NORMAL, median | aim |", "| --- | ---: | --- | ---: | --- |"]
    for label, values in seen.items():
        full, normal = values["full"], values["normal"]
        spread = f"{shown(min(full))} to {shown(max(full))}" if len(full) > 1 else ""
        relaxed = shown(statistics.median(normal)) if normal else ""
        rows.append(f"| {label} | {shown(statistics.median(full))} | {spread} | {relaxed} | {TARGETS.get(label, '')} |")
    return "\n".join(rows) + "\n"


def measured(name: str, synchronous: str) -> dict[str, float]:
    command = [sys.executable, str(HERE / "scenarios.py"), name, "--synchronous", synchronous]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=HERE.parent).stdout
    figures: dict[str, float] = json.loads(said.strip().splitlines()[-1])
    return figures


def dispatcher(quick: bool) -> str:
    print("dispatcher ...", file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / "dispatcher.py"), *(["--quick"] if quick else [])]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=HERE.parent).stdout
    return f"## The dispatcher in memory: microseconds per operation\n\n```\n{said.rstrip()}\n```\n"


def heading() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        "# What the embedded line reaches\n\n"
        f"`{' '.join(['python', 'bench/run.py', *sys.argv[1:]])}` on {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version} (WAL). FULL is the default: every commit is on disk before it is "
        "acknowledged.\nNORMAL (`?synchronous=normal`) survives a killed process, but not a power loss.\n"
        "Producers, worker, store and (for HTTP) the client share the cores.\n"
    )


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
