"""docs/operations.md lists every action of the audit log, and every command it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from fairlead.app import audit
from fairlead.cli.root import app

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
ACTIONS = sorted(value for name, value in vars(audit).items() if name.isupper() and isinstance(value, str))


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_of_the_audit_is_documented(action: str) -> None:
    assert f"`{action}`" in TEXT


def test_every_command_that_is_named_exists() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"\bfairlead ([a-z]+)", TEXT)) <= set(commands)
