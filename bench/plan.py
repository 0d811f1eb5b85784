"""The order of a run: a round visits every system in turn, so that noise affects all alike; scenarios that are measured
once follow the first round; further rounds follow while there is time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from bench.progress import elapsed, say
from bench.results import Results
from bench.scenarios import http, limits, scale, visit
from bench.scenarios.kill import kill
from bench.scenarios.memory import memory
from bench.scenarios.newcomer import newcomer
from bench.scenarios.pipeline import pipeline
from bench.scenarios.sleepers import sleepers
from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_run import Broken, describe
from bench.systems import Known

SOLO = {"memory": memory, "sleepers": sleepers, "newcomer": newcomer, "pipeline": pipeline, "http": http.submits}


class Plan:
    def __init__(
        self, systems: Sequence[Known], scenarios: Set[str], sizes: Sizes, rounds: int, results: Results
    ) -> None:
        self.servers = Servers()
        self._systems = list(systems)
        self._scenarios = scenarios
        self._sizes = sizes
        self._rounds = rounds
        self._results = results

    def run(self) -> None:
        self._look_for_systems()
        for number in range(1, self._rounds + 1):
            self._round(number)
            if number == 1:
                self._measured_once()
        say("done")

    def _look_for_systems(self) -> None:
        """A system that cannot describe itself is reported as missing."""
        with ThreadPoolExecutor(4) as pool:
            asked = {known: pool.submit(describe, known, self.servers) for known in self._systems}
        for known, about in asked.items():
            try:
                self._results.about[known.name] = about.result()
            except Broken as broken:
                self._results.missing[known.name] = str(broken)
                say(f"{known.name} is missing: {broken}")
        self._systems = [known for known in self._systems if known.name in self._results.about]

    def _round(self, number: int) -> None:
        wanted = self._scenarios & visit.SCENARIOS
        if self._sizes.memory_jobs:  # then it is measured once, with more jobs
            wanted -= {"memory"}
        for known in self._systems:
            if not wanted & known.scenarios:
                continue
            if number > 1 and elapsed() > self._sizes.minutes * 60:
                say(f"{known.name}: no time for round {number}")
                continue
            say(f"round {number}/{self._rounds}  {known.name}: {', '.join(sorted(wanted & known.scenarios))}")
            with self._noting(f"visit {known.name}"):
                visit.visit(known, self.servers, self._sizes, wanted, self._keep(known))

    def _measured_once(self) -> None:
        for scenario, measure in SOLO.items():
            if scenario == "memory" and not self._sizes.memory_jobs:
                continue  # it was measured in the round
            for known in self._systems:
                if scenario in self._scenarios & known.scenarios:
                    say(f"{scenario}  {known.name}")
                    with self._noting(f"{scenario} {known.name}"):
                        measure(known, self.servers, self._sizes, self._keep(known))
        if "kill" in self._scenarios:
            self._kill()
        for scenario, of_parts in {"scale": scale.costs, "limits": limits.limits}.items():
            if any(scenario in self._scenarios & known.scenarios for known in self._systems):
                say(scenario)
                with self._noting(scenario):
                    of_parts(self.servers, self._sizes, self._results.keep)

    def _kill(self) -> None:
        killed = [known for known in self._systems if "kill" in known.scenarios]
        if self._sizes.kill is not None:
            killed = [known for known in killed if known.name in self._sizes.kill]
        if not killed:
            return
        say(f"kill  {', '.join(known.name for known in killed)}: up to {self._sizes.kill_s:g} s")
        with self._noting("kill"):
            failed = kill(killed, self.servers, self._sizes, lambda *figure: self._results.keep("kill", *figure))
            self._results.failed.update({f"kill {name}": why for name, why in failed.items()})

    def _keep(self, known: Known) -> visit.Keep:
        return lambda scenario, figure, value: self._results.keep(scenario, known.name, figure, value)

    @contextmanager
    def _noting(self, cell: str) -> Iterator[None]:
        """Record a failed cell in the results and continue, unless the servers are gone."""
        try:
            yield
        except Exception as error:
            self._results.failed[cell] = f"{type(error).__name__}: {error}"
            say(f"{cell} failed: {error}")
            if gone := self.servers.gone():
                raise SystemExit(f"the run cannot go on without {gone}") from None
