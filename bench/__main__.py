"""Fairlead and its peers side by side, in one run.

    python -m bench                 what `make bench` does: everything, in less than 10 minutes
    python -m bench --full          what `make bench-full` does: more rounds, 1,000,000 jobs, everybody's workers killed
    python -m bench --system saq --scenario drain       one cell; also --rounds N
    python -m bench --report        write bench/RESULTS.md and the plots again from the last whole run

Progress goes to stderr. A whole run writes bench/RESULTS.md and the plots in docs/; a part of it is only printed.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys

from bench import machine, report
from bench.install import install
from bench.plan import Plan
from bench.plots import draw
from bench.results import Results
from bench.sizes import FULL, QUICK, SMOKE
from bench.systems import HERE, INSTALLED, SCENARIOS, SYSTEMS

LAST = INSTALLED / "results.json"


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that what was started is ended
    if given.report:
        write(Results.load(LAST))
        return
    sizes = FULL if given.full else SMOKE if given.smoke else QUICK
    results = Results()
    install()
    chosen = [SYSTEMS[name] for name in given.system or SYSTEMS]
    plan = Plan(chosen, frozenset(given.scenario or SCENARIOS), sizes, given.rounds or sizes.rounds, results)
    results.run = machine.facts(plan.servers) | {
        "command": shlex.join(["python", "-m", "bench", *sys.argv[1:]]),
        "sizes": "full" if given.full else "smoke" if given.smoke else "quick",
    }
    plan.run()
    whole = not (given.system or given.scenario or given.smoke)
    if whole:
        results.save(LAST)
        write(results)
    print(report.text(results))


def write(results: Results) -> None:
    (HERE / "RESULTS.md").write_text(report.text(results), encoding="utf-8")
    draw(LAST)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="hours instead of minutes")
    parser.add_argument("--smoke", action="store_true", help="50 jobs each: does everything work?")
    parser.add_argument("--system", action="append", choices=SYSTEMS, metavar="NAME", help=", ".join(SYSTEMS))
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, help="how often everything is repeated, if there is time")
    parser.add_argument("--report", action="store_true", help="write the last whole run's report again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
