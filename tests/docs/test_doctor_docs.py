"""docs/doctor.md lists exactly the findings of the code, and the commands that fix them exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from fairlead.cli.root import app
from fairlead.observe import doctor
from fairlead.observe.doctor import KINDS, SECOND_LOOK
from fairlead.observe.doctor.finding import Kind

TEXT = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z-]+)` \| ([a-z, ]+) \| (.+?) \| (.+?) \|$", TEXT, re.M)
CODE = "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(doctor.__file__).parent.glob("*.py")))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_the_tables_have_every_finding_once() -> None:
    assert sorted(code for code, *_ in ROWS) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_row_matches_the_code(kind: Kind) -> None:
    [(_, severity, meaning, _)] = [row for row in ROWS if row[0] == kind.code]
    assert severity == kind.severity.value + (", twice" if kind.passing else "")
    assert meaning.startswith(kind.title)


def test_the_symptoms_name_findings_that_exist() -> None:
    table = TEXT.partition("## Troubleshooting by symptom")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", table))
    assert named
    assert named <= KINDS.keys()


def test_the_delay_of_the_second_check_is_documented() -> None:
    assert f"{SECOND_LOOK} seconds later" in TEXT


@pytest.mark.parametrize("text", [TEXT, CODE], ids=["docs", "code"])
def test_every_command_in_a_fix_exists(text: str) -> None:
    named = set(re.findall(r"`fairlead ([a-z]+)(?: (list|requeue|purge|create|check|show|drain))?", text))
    assert len(named) > 5
    for command, sub in named:
        assert command in COMMANDS, f"fairlead {command}"
        assert not sub or sub in COMMANDS[command].commands, f"fairlead {command} {sub}"
