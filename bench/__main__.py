"""Fairlead and its peers side by side, in one run.

    python -m bench                 what `make bench` does: everything, in less than 10 minutes
    python -m bench --full          what `make bench-full` does: more rounds, 1,000,000 jobs, kills in all systems
    python -m bench --system saq --scenario drain       one cell; both can be repeated; also --rounds N
    python -m bench --report        write bench/RESULTS.md and the plots again from the last whole run

Progress goes to stderr. A whole run writes bench/RESULTS.md and the plots in docs/; a partial run is only printed.
"""

from __future__ import annotations

import argparse
import fcntl
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from bench import machine, report
from bench.install import install
from bench.plan import Plan
from bench.plots import draw
from bench.progress import say
from bench.results import Results
from bench.sizes import FULL, QUICK, SMOKE
from bench.systems import HERE, INSTALLED, SCENARIOS, SYSTEMS

LAST = INSTALLED / "results.json"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    given = arguments()
    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:  # for example by nohup
            signal.signal(number, stop)
    if given.report:
        write_again()
        return
    with alone():
        measure(given)


def stop(number: int, frame: FrameType | None) -> None:
    """Clean up once: a second signal would leave servers and folders behind."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def measure(given: argparse.Namespace) -> None:
    whole = not (given.system or given.scenario or given.smoke)
    results = Results()
    chosen = [SYSTEMS[name] for name in given.system or SYSTEMS]
    try:
        install(chosen)
        plan = _plan(given, results)
        plan.run()
    except SystemExit:
        _print_partial_report(results)
        raise
    print(report.text(results, whole=whole))
    if whole:
        results.save(LAST)
        write(results)
    elif results.missing or results.failed:
        sys.exit(1)


def _plan(given: argparse.Namespace, results: Results) -> Plan:
    sizes = FULL if given.full else SMOKE if given.smoke else QUICK
    if given.system:
        sizes = replace(sizes, kill=None)  # systems named on the command line are always measured
    chosen = [SYSTEMS[name] for name in given.system or SYSTEMS]
    plan = Plan(chosen, frozenset(given.scenario or SCENARIOS), sizes, given.rounds or sizes.rounds, results)
    results.run = machine.facts(plan.servers) | {
        "command": shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
        "sizes": "full" if given.full else "smoke" if given.smoke else "quick",
    }
    return plan


def _print_partial_report(results: Results) -> None:
    """Keep the results of a run that ended early, apart from those of complete runs."""
    if results.values:
        print(report.text(results, whole=False))
    say("stopped before its end; bench/RESULTS.md is as it was")


@contextmanager
def alone() -> Iterator[None]:
    """Refuse a second run: two at once would disturb each other and install into the same folders."""
    try:
        INSTALLED.mkdir(exist_ok=True)
        lock = (INSTALLED / "lock").open("w")
    except OSError as error:
        raise SystemExit(f"the peers cannot be installed here: {error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit("the benchmark is running here already: two at once would measure each other") from None
        yield


def write_again() -> None:
    try:
        results = Results.load(LAST)
    except FileNotFoundError:
        raise SystemExit("there was no whole run here yet: `make bench` is one") from None
    write(results)


def write(results: Results) -> None:
    (HERE / "RESULTS.md").write_text(report.text(results), encoding="utf-8")
    draw(LAST)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="hours instead of minutes")
    size.add_argument("--smoke", action="store_true", help="50 jobs each: does everything work?")
    parser.add_argument("--system", action="append", choices=SYSTEMS, metavar="NAME", help=", ".join(SYSTEMS))
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--rounds", type=one_or_more, help="how often everything is repeated, if there is time")
    parser.add_argument("--report", action="store_true", help="write the last whole run's report again")
    given = parser.parse_args()
    wanted = set(given.scenario or SCENARIOS)
    for name in given.system or ():
        if not wanted & SYSTEMS[name].scenarios:
            parser.error(f"{name} does not take part in {', '.join(sorted(wanted))}")
    return given


def one_or_more(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    main()
