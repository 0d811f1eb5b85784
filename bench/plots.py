"""Draws the plots with the peers' matplotlib, so that we need none: python -m bench.plots RESULTS.json"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.progress import say
from bench.results import Results
from bench.systems import INSTALLED, ROOT, SYSTEMS

PLOTS = {
    "bench-drain.png": ("drain", "jobs/s", "drain, jobs/s"),
    "bench-enqueue.png": ("enqueue", "bulk", "enqueue in bulk, jobs/s"),
    "bench-latency.png": ("latency", "p50 ms", "idle latency p50, ms (log scale)"),
}
OURS, THEIRS = "#0b6e4f", "#9aa5b1"


def draw(results: Path) -> None:
    python = INSTALLED / "venv" / "bin" / "python"
    drawn = (
        python.exists() and not subprocess.run([python, "-m", "bench.plots", results], cwd=ROOT, check=False).returncode
    )
    if not drawn:
        say("no plots: matplotlib is missing or failed; those in docs/ are of an earlier run")


def _draw_all(results: Results) -> None:
    import matplotlib as mpl  # type: ignore[import-not-found]

    mpl.use("Agg")
    from matplotlib import pyplot

    for file, (scenario, figure, title) in PLOTS.items():
        medians = {name: results.median(scenario, name, figure) for name in SYSTEMS}
        bars = sorted(((value, name) for name, value in medians.items() if value), reverse="latency" in file)
        if not bars:
            continue
        names = [name for _, name in bars]
        low, high = zip(
            *(results.spread(scenario, name, figure) or (value, value) for value, name in bars), strict=True
        )
        values = [value for value, _ in bars]
        errors = [
            [value - least for value, least in zip(values, low, strict=True)],
            [most - value for value, most in zip(values, high, strict=True)],
        ]
        _, axes = pyplot.subplots(figsize=(8, 0.32 * len(bars) + 1))
        colours = [THEIRS if SYSTEMS[name].family else OURS for name in names]
        axes.barh(names, values, color=colours, xerr=errors, error_kw={"elinewidth": 1})
        if "latency" in file:
            axes.set_xscale("log")
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
        pyplot.tight_layout()
        pyplot.savefig(ROOT / "docs" / file, dpi=110)
        pyplot.close()


if __name__ == "__main__":
    _draw_all(Results.load(Path(sys.argv[1])))
