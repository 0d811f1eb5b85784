"""Fairlead's OpenAI front beside the upstream alone, LiteLLM's proxy and SMG, in one run on a fake upstream.

    python -m bench.front                          all fronts, three rounds, about five minutes
    python -m bench.front --front fairlead --rounds 1       one front (can be repeated), and the upstream alone

The peers are installed from PyPI into environments of their own, below bench/.peers. Progress goes to stderr; the
report is printed.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from dataclasses import dataclass

from bench import machine
from bench.__main__ import STOPS, alone, one_or_more, stop
from bench.front import report
from bench.front.fronts import FRONTS, UPSTREAM, Running, started, upstream
from bench.front.measure import Seconds, measure
from bench.progress import say
from bench.results import Results
from bench.servers import Servers
from bench.system_run import Broken

FULL = Seconds(warm_up=1.0, requests=3.0, streams=4.0)
SMOKE = Seconds(warm_up=0.1, requests=0.2, streams=0.2)


@dataclass(frozen=True)
class Plan:
    names: list[str]
    rounds: int
    seconds: Seconds

    def run(self, results: Results, servers: Servers) -> None:
        present = [name for name in self.names if self._is_present(name, results)]
        with upstream() as behind:
            for number in range(1, self.rounds + 1):
                for name in present:
                    if name not in results.missing:
                        say(f"round {number} of {self.rounds}: {name}")
                        self._visit(name, behind, servers, results)

    def _is_present(self, name: str, results: Results) -> bool:
        try:
            results.about[name] = {"version": FRONTS[name].version()}
        except Broken as error:
            results.missing[name] = str(error)
            say(f"{name} is missing: {error}")
            return False
        return True

    def _visit(self, name: str, behind: Running, servers: Servers, results: Results) -> None:
        front = FRONTS[name]
        try:
            if front.start is None:
                measure(name, behind, self.seconds, results)
            else:
                with started(front, behind.url, servers) as running:
                    measure(name, running, self.seconds, results)
        except Broken as error:
            results.missing[name] = str(error)
            say(f"{name} failed: {error}")


def main() -> None:
    given = arguments()
    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    compared = [] if given.smoke else [UPSTREAM]
    names = [name for name in FRONTS if not given.front or name in [*given.front, *compared]]
    plan = Plan(names, given.rounds or (1 if given.smoke else 3), SMOKE if given.smoke else FULL)
    results = Results()
    with alone():
        servers = Servers()
        command = shlex.join(["python", "-m", "bench.front", *sys.argv[1:]])
        results.run = machine.facts(servers) | {"command": command, "smoke": given.smoke}
        try:
            plan.run(results, servers)
        finally:
            print(report.text(results))
    if given.front and (results.missing or results.failed):
        sys.exit(1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.front", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="a few requests each: does everything work?")
    parser.add_argument("--front", action="append", choices=FRONTS, metavar="NAME", help=", ".join(FRONTS))
    parser.add_argument("--rounds", type=one_or_more, help="how often everything is repeated")
    return parser.parse_args()


if __name__ == "__main__":
    main()
