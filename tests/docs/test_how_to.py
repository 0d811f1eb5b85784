"""The code of the how-to pages works: modules import, configurations are valid, commands exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import yaml
from tests.integration.cli_process import fairlead

from fairlead.cli.root import app
from fairlead.config import load

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to"
PAGES = sorted(FOLDER.glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)


def blocks(page: Path, language: str) -> Iterator[tuple[str, str]]:
    for found, title, body in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if found == language:
            yield title, body


def command_line(words: list[str]) -> None:
    """Parse a command as the command line does, without running it."""
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        command, words = command.commands[words[0]], words[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert [word for word in words if word.startswith("--") and word.partition("=")[0] not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_modules_import(page: Path, tmp_path: Path) -> None:
    files = [*blocks(page, "python"), *((title, body) for title, body in blocks(page, "toml") if title)]
    for title, body in files:
        assert title, "a Python block of a how-to page has a title, so that it is tested"
        (tmp_path / title).write_text(body, encoding="utf-8")
    for module in sorted(tmp_path.glob("*.py")):
        tests = ["-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", module.name]
        once = ["-m", "timeit", "-n", "1", "-r", "1", f"import {module.stem}"]
        ended = fairlead(*(tests if module.stem.startswith("test_") else once), cwd=tmp_path)
        assert ended.code == 0, ended.out + ended.err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_configurations_are_valid(page: Path, tmp_path: Path) -> None:
    for number, (_, body) in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(body, encoding="utf-8")
        assert load(file, {}).config.services


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page: Path) -> None:
    for _, body in blocks(page, "sh"):
        for line in body.splitlines():
            if line.startswith("fairlead "):
                command_line(shlex.split(line, comments=True)[1:])
    for _, body in blocks(page, "yaml"):
        for manifest in yaml.safe_load_all(body):
            [container] = manifest["spec"]["template"]["spec"]["containers"]
            command_line(container["args"])
