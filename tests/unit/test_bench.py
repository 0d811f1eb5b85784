"""The parts of the benchmark: how many jobs it asks for, and what its report contains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from bench import __main__ as program
from bench import footnotes, install, report, system_run
from bench.front import measure
from bench.front import report as front_report
from bench.results import Results
from bench.scenarios import visit
from bench.sizes import FULL, QUICK
from bench.system_run import Stage
from bench.systems import ROOT

Refused = Callable[..., str]


class _Fast:
    """A system that accepts every job at once."""

    def __init__(self) -> None:
        self.about = {"bulk": True}
        self.asked: list[tuple[str, int]] = []

    def store_bytes(self) -> int:
        return 0

    def ask(self, command: str, **options: Any) -> dict[str, Any]:
        count = options["at_most"] if command == "enqueue" else options["count"]
        self.asked.append((command, count))
        return {"count": count, "seconds": 0.1}


def test_a_fast_system_has_enough_jobs_left_for_its_bulk_measurement() -> None:
    for sizes in (QUICK, FULL):
        fast = _Fast()
        waiting = visit.fill(cast(Stage, fast), sizes, {"enqueue"}, lambda *figure: None)
        assert waiting <= sizes.jobs * 2.25
        command, count = fast.asked[-1]
        assert command == "fill"
        assert count >= 5 * 1000  # five bulk calls


def test_a_run_of_zero_rounds_is_refused(refused: Refused) -> None:
    assert "at least 1" in refused("--rounds", "0")


def test_a_system_that_does_not_run_a_scenario_is_refused(refused: Refused) -> None:
    assert "rq does not take part in sleepers" in refused("--system", "rq", "--scenario", "sleepers")


def test_a_report_without_results_names_the_command_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "LAST", tmp_path / "results.json")
    with pytest.raises(SystemExit, match="make bench"):
        program.write_again()


def test_two_runs_at_once_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "INSTALLED", tmp_path)
    with program.alone(), pytest.raises(SystemExit, match="running here already"), program.alone():
        pass
    with program.alone():
        pass


def test_a_failed_installation_is_repeated(tmp_path: Path) -> None:
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
    ("output", "why"),
    [
        (
            "Traceback:\n  File\nModuleNotFoundError: No module named 'saq'\n",
            "ModuleNotFoundError: No module named 'saq'",
        ),
        ("throw\nError: Cannot find module 'bullmq'\n  at x\nNode.js v20.20.2\n", "Error: Cannot find module 'bullmq'"),
        ("Killed\n", "Killed"),
        ("", "no output"),
    ],
)
def test_the_reason_of_a_missing_system_is_its_error_and_not_its_version(output: str, why: str) -> None:
    assert system_run.why(output) == why


def test_a_missing_system_is_named_before_the_figures() -> None:
    results = Results()
    results.missing["saq"] = "no module"
    results.keep("drain", "huey", "jobs/s", 1.0)
    output = report.text(results)
    assert output.index("**saq is missing**: no module") < output.index("## Drain")


def test_a_partial_report_has_no_picture_and_no_target_of_another_run() -> None:
    results = Results()
    results.keep("drain", "huey", "jobs/s", 1.0)
    output = report.text(results, whole=False)
    assert "| huey | 1 |" in output
    assert ".png" not in output
    assert "not measured" not in output
    assert "not measured" in report.text(results)


def test_a_drain_with_another_number_of_jobs_is_reported() -> None:
    results = Results()
    for name, jobs in (("huey", 20_000), ("rq", 3_000)):
        results.about[name] = {"bulk": True}
        results.keep("drain", name, "jobs", jobs)
    assert (
        footnotes.remark(results, "drain", "jobs/s")
        == "Of 20,000 jobs, but rq of 3,000, as many as were enqueued in time.\n\n"
    )


def test_the_report_names_the_systems_whose_workers_are_killed() -> None:
    results = Results()
    assert "fairlead, fairlead-embedded, pgqueuer, dbos; all in `make bench-full`" in report.text(results)
    results.run["sizes"] = "full"
    assert "defaults | all |" in report.text(results)


def test_every_remark_belongs_to_a_table_of_the_report() -> None:
    assert footnotes._REMARKS.keys() <= {(scenario, figure) for scenario, figure, _ in (*report.RATES, *report.COSTS)}


def test_the_claim_with_limits_is_compared_with_one_that_uses_none() -> None:
    results = Results()
    for variant, cost in (("nothing", 20.0), ("requests", 22.0), ("tokens", 24.0), ("teams", 30.0)):
        results.keep("scale", "fairlead", f"exchange µs with {variant}", cost)
    output = report.text(results, whole=False)
    assert "| tokens | - | - | 24 | 1.20 |" in output
    assert "| claim with rates, Redis | one without | at most 1.3 | 1.20 | met |" in output
    assert "| claim with groups, Redis | one without | at most 1.3 | 1.50 | **missed** |" in output
    assert "memory | one without" not in output


def test_a_missing_front_is_named_before_the_figures() -> None:
    results = Results()
    results.missing["smg"] = "it does not install: no wheel"
    results.keep(measure.MANY, "litellm", "requests/s", 100.0)
    output = front_report.text(results)
    assert output.index("**smg is missing**: it does not install: no wheel") < output.index("| litellm |")


def test_the_aims_of_the_front_are_ratios_to_the_peers() -> None:
    results = Results()
    for name, rate, latency in (("upstream", 9000, 1), ("litellm", 100, 17), ("smg", 3000, 2), ("fairlead", 1200, 6)):
        results.keep(measure.MANY, name, "requests/s", rate)
        results.keep(measure.ONE, name, "p50 ms", latency)
    output = front_report.text(results)
    assert "| requests/s at 32 connections / LiteLLM's | at least 10 | 12 | met |" in output
    assert "| requests/s at 32 connections / SMG's | at least 0.5 | 0.4 | **missed** |" in output
    assert "| added latency (p50, 1 connection) / LiteLLM's | at most 0.25 | 0.312 | **missed** |" in output
    assert "fairlead-embedded |" not in output


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Call with arguments that the program refuses; returns what it prints."""

    def refuse(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            program.main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return refuse


@pytest.mark.slow
def test_a_smoke_run_of_ours_works() -> None:
    command = [sys.executable, "-m", "bench", "--smoke", "--rounds", "1"]
    chosen = ["--system", "fairlead-embedded", "--scenario", "enqueue"]
    done = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "**fairlead-embedded**" in done.stdout


@pytest.mark.slow
def test_a_smoke_run_of_our_front_works() -> None:
    command = [sys.executable, "-m", "bench.front", "--smoke", "--front", "fairlead-embedded"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| fairlead-embedded |" in done.stdout
