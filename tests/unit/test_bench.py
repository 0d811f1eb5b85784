"""The benchmark's own parts: what it asks for, and what it says of what it found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from bench import __main__ as program
from bench import install, remarks, report, stage
from bench.results import Results
from bench.scenarios import visit
from bench.sizes import FULL, QUICK
from bench.stage import Stage
from bench.systems import ROOT


class _Fast:
    """A system that takes in all that it is asked to, at once."""

    def __init__(self) -> None:
        self.about = {"bulk": True}
        self.asked: list[tuple[str, int]] = []

    def store_bytes(self) -> int:
        return 0

    def ask(self, command: str, **options: Any) -> dict[str, Any]:
        count = options["at_most"] if command == "enqueue" else options["count"]
        self.asked.append((command, count))
        return {"count": count, "seconds": 0.1}


def test_a_system_that_is_quick_one_by_one_has_many_jobs_left_for_its_bulk() -> None:
    for sizes in (QUICK, FULL):
        fast = _Fast()
        waiting = visit.fill(cast(Stage, fast), sizes, {"enqueue"}, lambda *figure: None)
        assert waiting <= sizes.jobs * 2.25
        command, count = fast.asked[-1]
        assert command == "fill"
        assert count >= 5 * 1000  # five calls of its bulk


def test_a_run_of_zero_rounds_is_refused() -> None:
    assert "at least 1" in _refused("--rounds", "0")


def test_a_system_that_does_not_take_part_is_named_instead_of_measuring_nothing() -> None:
    assert "rq does not take part in sleepers" in _refused("--system", "rq", "--scenario", "sleepers")


def test_a_report_without_a_run_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "LAST", tmp_path / "results.json")
    with pytest.raises(SystemExit, match="make bench"):
        program.write_again()


def test_two_runs_at_once_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "INSTALLED", tmp_path)
    with program.alone(), pytest.raises(SystemExit, match="running here already"), program.alone():
        pass
    with program.alone():
        pass


def test_what_did_not_install_is_tried_again(tmp_path: Path) -> None:
    wanted = install.HERE / "peers" / "requirements.txt"
    worked = iter([False, True])
    tries = []

    def make() -> bool:
        tries.append(1)
        return next(worked)

    for _ in range(3):
        install._unless_done(tmp_path, wanted, make)
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "Traceback:\n  File\nModuleNotFoundError: No module named 'saq'\n",
            "ModuleNotFoundError: No module named 'saq'",
        ),
        ("throw\nError: Cannot find module 'bullmq'\n  at x\nNode.js v20.20.2\n", "Error: Cannot find module 'bullmq'"),
        ("Killed\n", "Killed"),
        ("", "it says nothing"),
    ],
)
def test_why_a_system_is_missing_is_its_error_not_its_version(said: str, why: str) -> None:
    assert stage._why(said) == why


def test_a_missing_system_is_named_before_the_figures() -> None:
    results = Results()
    results.missing["saq"] = "no module"
    results.keep("drain", "huey", "jobs/s", 1.0)
    said = report.text(results)
    assert said.index("**saq is missing**: no module") < said.index("## Drain")


def test_a_part_of_a_run_shows_no_picture_and_no_target_of_another() -> None:
    results = Results()
    results.keep("drain", "huey", "jobs/s", 1.0)
    said = report.text(results, whole=False)
    assert "| huey | 1 |" in said
    assert ".png" not in said
    assert "not measured" not in said
    assert "not measured" in report.text(results)


def test_a_drain_of_other_jobs_than_the_rest_is_told() -> None:
    results = Results()
    for name, jobs in (("huey", 20_000), ("rq", 3_000)):
        results.about[name] = {"bulk": True}
        results.keep("drain", name, "jobs", jobs)
    assert remarks.remark(results, "drain", "jobs/s") == "Of 20,000 jobs, but rq of 3,000: as many as had gone in.\n\n"


def test_whose_workers_are_killed_is_told_as_it_is() -> None:
    results = Results()
    assert "fairlead, fairlead-embedded, pgqueuer, dbos; all in `make bench-full`" in report.text(results)
    results.run["sizes"] = "full"
    assert "defaults | all |" in report.text(results)


def test_every_remark_is_about_a_table_of_the_report() -> None:
    assert remarks._REMARKS.keys() <= {(scenario, figure) for scenario, figure, _ in (*report.RATES, *report.COSTS)}


def _refused(*arguments: str) -> str:
    said = subprocess.run(
        [sys.executable, "-m", "bench", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert said.returncode == 2
    return said.stderr
