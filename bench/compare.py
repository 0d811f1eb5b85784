"""Compares Fairlead in another working tree with Fairlead here, cell by cell, in one run.

    git worktree add ../before v0.1 && make -C ../before install
    python -m bench.compare ../before --rounds 3 --scenario drain

The two trees take turns, so that a slow minute of the machine meets both. The noise of a cell is measured in the same
run: it is the larger ratio of the best to the worst round of one tree. A cell is worse if the median here is worse than
the median there by more than that.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.report import COSTS, RATES, table
from bench.results import Key, Results
from bench.systems import EMBEDDED, OURS, SCENARIOS

HERE = Path(__file__).parents[1]
SYSTEMS = (OURS, EMBEDDED)
# Runs the benchmark of the tree in its working directory and saves the values, which a partial run does not do itself.
ONE_ROUND = """
import pathlib, sys
from bench import __main__ as command
out, *sys.argv[1:] = sys.argv[1:]
made = []
class Kept(command.Results):
    def __init__(self):
        super().__init__()
        made.append(self)
command.Results = Kept
try:
    command.main()
finally:
    made[0].save(pathlib.Path(out))
"""
RATES_OF_OURS = {(scenario, figure) for scenario, figure, _ in RATES} | {
    ("http", "submits/s"),
    ("http", "jobs/s in bulk"),
}
COSTS_OF_OURS = {(scenario, figure) for scenario, figure, _ in COSTS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path, help="a working tree in which `make install` was run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    given = parser.parse_args()
    trees = {"there": given.tree.resolve(), "here": HERE}
    values: dict[str, dict[Key, list[float]]] = {name: {} for name in trees}
    for number in range(given.rounds):
        for name in ("there", "here") if number % 2 == 0 else ("here", "there"):
            for key, found in measured(trees[name], given.scenario or []).items():
                values[name].setdefault(key, []).append(statistics.median(found))
    print(report(values["there"], values["here"]))


def measured(tree: Path, scenarios: list[str]) -> dict[Key, list[float]]:
    options = [word for name in SYSTEMS for word in ("--system", name)]
    options += [word for name in scenarios for word in ("--scenario", name)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "values.json"
        command = [str(tree / ".venv/bin/python"), "-c", ONE_ROUND, str(out), *options, "--rounds", "1"]
        subprocess.run(command, cwd=tree, stdout=sys.stderr, check=True)
        return Results.load(out).values


def report(there: dict[Key, list[float]], here: dict[Key, list[float]]) -> str:
    rows = [row for key in there if key in here and (row := compared(key, there[key], here[key]))]
    worse = sum(row[-1] == "worse" for row in rows)
    head = ("cell", "there", "here", "here is better by", "noise", "")
    return f"{table(head, rows)}\n{len(rows)} cells, {worse} worse than noise"


def compared(key: Key, there: list[float], here: list[float]) -> tuple[str, ...] | None:
    scenario, system, figure = key
    is_rate = (scenario, figure) in RATES_OF_OURS
    is_cost = (scenario, figure) in COSTS_OF_OURS or (scenario == "scale" and "plain" not in figure)
    if min(there + here) <= 0 or not (is_rate or is_cost):
        return None
    before, after = statistics.median(there), statistics.median(here)
    gain = after / before if is_rate else before / after
    noise = max(max(each) / min(each) for each in (there, here))
    verdict = "worse" if gain * noise < 1 else "better" if gain > noise else ""
    cell = f"{scenario}, {system}: {figure}"
    return (cell, f"{before:.4g}", f"{after:.4g}", f"{gain:.2f}", f"{noise:.2f}", verdict)


if __name__ == "__main__":
    main()
