"""The commands, variables and timeouts in deploy/ and docs/production.md exist and fit together."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from fairlead.cli.root import app
from fairlead.config import PREFIX, load
from fairlead.domain.config import Config, WorkerConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXAMPLES = sorted([*DEPLOY.glob("*.env.example"), *DEPLOY.glob("systemd/*.env.example")])
COMPOSE = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
PAGES = [DEPLOY / "README.md", ROOT / "docs" / "production.md", ROOT / "README.md"]
CLI = typer.main.get_command(app)
PLACEHOLDERS = {"$APP", "$WORKER_OPTIONS"}


def unit(path: Path) -> configparser.ConfigParser:
    # systemd allows a key twice (EnvironmentFile); its $ and % are not interpolated here.
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path, encoding="utf-8")
    return parser


def settings_of(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def commands() -> Iterator[tuple[str, list[str]]]:
    """The file and the words after `fairlead`, for every command."""
    for words in re.findall(r"^    command: (\[.*\])$", COMPOSE, re.M):
        yield "compose.yaml", json.loads(words)
    yield "Dockerfile", json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.M)[-1])
    for path in UNITS:
        program, *words = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program.endswith("/fairlead")
        yield path.name, words
    options = settings_of(DEPLOY / "systemd" / "worker-high.env.example")["WORKER_OPTIONS"]
    yield "worker-high.env.example", ["worker", *shlex.split(options)]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```sh\n(.*?)```", text, re.M | re.S):
            for line in re.findall(r"^fairlead (.*)$", block, re.M):
                yield page.name, shlex.split(line, comments=True)
        for line in re.findall(r"`fairlead ([a-z][^`]*)`", text):
            yield page.name, shlex.split(line)


COMMANDS = list(commands())


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else None)
def test_every_command_exists_with_its_options(where: str, words: list[str]) -> None:
    command = CLI
    words = [word for word in words if word not in PLACEHOLDERS]
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, f"{where}: {words}"
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands"):
        return  # the text mentions a group of commands
    known = {name for parameter in command.params for name in parameter.opts if name.startswith("-")}
    assert {word for word in words if word.startswith("-")} <= known, f"{where}: {words}"


def test_every_process_is_started_by_compose_and_by_systemd() -> None:
    for place in ("compose.yaml", ".service"):
        started = {words[0] for where, words in COMMANDS if where.endswith(place)}
        assert started >= {"api", "worker", "manager"}


# ---------------------------------------------------------------- variables


def test_every_variable_is_one_that_the_configuration_documents() -> None:
    documented = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    texts = [COMPOSE, DOCKERFILE, *(path.read_text(encoding="utf-8") for path in [*EXAMPLES, *UNITS, *PAGES])]
    named = {
        name for text in texts for name in re.findall(rf"\b(?:{PREFIX}[A-Z_]*[A-Z]|DATABASE_URL|REDIS_URL)\b", text)
    }
    assert named >= {"DATABASE_URL", "REDIS_URL", "FAIRLEAD_ADMIN_KEY", "FAIRLEAD_SERVER__HOST"}
    assert [name for name in sorted(named) if f"`{name}`" not in documented] == []


def test_the_variables_of_the_image_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = dict(re.findall(rf"({PREFIX}\w+)=(\S+)", DOCKERFILE))
    server = load(None, environ).config.server
    assert (server.host, server.port) == ("0.0.0.0", 8000)
    assert f"EXPOSE {server.port}" in DOCKERFILE
    assert f":{server.port}" in COMPOSE


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_hold_no_secrets(example: Path) -> None:
    secrets = {
        name: value
        for name, value in settings_of(example).items()
        if value and re.search(r"KEY|PASSWORD|SECRET|TOKEN|URL", name)
    }
    assert secrets == {}


def test_compose_has_no_password_and_no_default_for_one() -> None:
    example = settings_of(DEPLOY / "compose.env.example")
    used = re.findall(r"\$\{(\w+)(.{2})", COMPOSE)
    assert {name for name, _ in used} == set(example)
    assert {how for _, how in used} == {":?"}  # a missing value prevents the start


# ---------------------------------------------------------------- stopping


def test_whatever_stops_a_process_waits_longer_than_it_drains(tmp_path: Path) -> None:
    drain = max(load(DEPLOY / "fairlead.toml", {}).config.worker.drain_timeout, WorkerConfig().drain_timeout)
    (grace,) = re.findall(r"^  stop_grace_period: (\d+)s$", COMPOSE, re.M)
    assert int(grace) > drain
    for path in UNITS:
        assert int(unit(path)["Service"]["TimeoutStopSec"]) > drain


def test_a_workers_children_are_not_signalled_before_it_has_drained() -> None:
    assert unit(DEPLOY / "systemd" / "fairlead-worker@.service")["Service"]["KillMode"] == "mixed"


def test_a_process_with_an_invalid_configuration_is_not_restarted() -> None:
    from fairlead.cli.failure import Exit

    for path in UNITS:
        assert unit(path)["Service"]["RestartPreventExitStatus"] == str(int(Exit.USAGE))


# ---------------------------------------------------------------- referenced files


def test_the_image_copies_files_that_exist() -> None:
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    kept = set(re.findall(r"^!(\S+)", ignored, re.M))
    copied = {
        source.partition("/")[0]
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)
        for source in line.split()
    }
    assert copied == kept
    assert "USER fairlead" in DOCKERFILE


def test_the_example_of_a_configuration_is_valid() -> None:
    config: Config = load(DEPLOY / "fairlead.toml", {}).config
    assert list(config.contradictions()) == []
    assert config.services


def test_files_that_the_units_and_compose_name_have_an_example() -> None:
    for path in UNITS:
        assert "EnvironmentFile=/etc/fairlead/fairlead.env" in path.read_text(encoding="utf-8")
    for name in re.findall(r"- \./(\S+?):", COMPOSE):
        assert (DEPLOY / name).exists()
