"""docs/cli.md documents every command, option and exit code of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fairlead.cli.failure import Exit
from fairlead.cli.root import app
from fairlead.client import settings

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = {title.strip(): body for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", DOCS, re.M | re.S)}


def commands(group: Any, path: tuple[str, ...] = ("fairlead",)) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ROOT = typer.main.get_command(app)
COMMANDS = dict(commands(ROOT))


def section_of(command: str) -> str:
    sections = [body for title, body in SECTIONS.items() if re.fullmatch(rf"{command}( [\[A-Z].*)?", title)]
    assert len(sections) == 1, f"docs/cli.md needs one section '## {command} ...'"
    return sections[0]


def documented_options(text: str) -> set[str]:
    first_cells = re.findall(r"^\| (`-.+?) \|", text, re.M)
    return set(re.findall(r"(?<![\w-])--?[A-Za-z][a-z-]*", " ".join(first_cells)))


def options_of(command: Any) -> set[str]:
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    return {name for parameter in shown for name in parameter.opts if name.startswith("-")}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented_with_exactly_its_options(command: str) -> None:
    assert documented_options(section_of(command)) == options_of(COMMANDS[command]) - {"--url"}


def test_every_command_that_calls_a_gateway_has_the_url_option() -> None:
    assert "`--url URL`" in DOCS
    local = ("up", "api", "worker", "manager", "keys", "migrate", "config", "celery", "init", "docs", "certs")
    without = {name for name, command in COMMANDS.items() if "--url" not in options_of(command)}
    assert without == {name for name in COMMANDS if name.split()[1] in local}


def test_every_command_has_json() -> None:
    assert [name for name, command in COMMANDS.items() if "--json" not in options_of(command)] == []


def test_no_section_is_about_a_command_that_does_not_exist() -> None:
    titles = [title for title in SECTIONS if title.startswith("fairlead ")]
    assert len(titles) == len(COMMANDS)


def test_the_options_of_fairlead_itself_are_documented() -> None:
    for option in options_of(ROOT):
        assert f"`{option}" in DOCS


def test_every_exit_code_is_documented() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCS, re.M)}
    assert codes == {int(code) for code in Exit}


def test_the_environment_of_the_client_is_documented_with_its_default() -> None:
    assert f"`{settings.URL_VARIABLE}`" in DOCS
    assert f"`{settings.KEY_VARIABLE}`" in DOCS
    assert f"`{settings.DEFAULT_URL}`" in DOCS
