"""The commands that need no gateway: config, migrate, --version; and the command without its packages."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fairlead as package
from fairlead.cli import NEEDS_EXTRA
from fairlead.cli.failure import Exit
from tests.integration.cli_process import PROJECT, environment, fairlead

SECRETS = """
[services.paint]
url = "https://ada:s3cret@paint.example/v1?token=s3cret"
limit = 2
headers = { Authorization = "Bearer s3cret", X-Trace = "env:TRACE" }
[services.far]
limit = 4
regions.us = { url = "https://us:s3cret@far.example/v1", limit = 1 }
backoff = [1, 2]
[pipelines]
art = ["paint"]
"""


def test_version(tmp_path: Path) -> None:
    done = fairlead("--version", cwd=tmp_path)
    assert (done.code, done.out.strip()) == (Exit.OK, f"fairlead {package.__version__}")


def test_a_wrong_log_level_is_refused_with_the_valid_ones(tmp_path: Path) -> None:
    done = fairlead("--log-level", "loud", "config", "check", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert "debug, info, warning, error" in done.err


def test_without_its_packages_the_command_names_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom fairlead.cli import main\nmain()"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (1, "", NEEDS_EXTRA)


# ---------------------------------------------------------------- config


def test_config_check_prints_ok(tmp_path: Path) -> None:
    recurring = (
        '[schedules.x]\nevery = 60\n[budgets.a]\nseconds = 1\nper = "day"\n[budgets.b]\ntokens = 9\nper = "day"\n'
    )
    (tmp_path / "fairlead.toml").write_text('[services.x]\nlimit = 1\nurl = "http://127.0.0.1:9/"\n' + recurring)
    done = fairlead("config", "check", cwd=tmp_path)
    counts = "1 service, 0 pipelines, 1 schedule, 2 budgets"
    assert (done.code, done.out.strip()) == (Exit.OK, f"fairlead.toml: ok, {counts}")
    assert fairlead("config", "check", "--json", cwd=tmp_path).json == {
        "source": "fairlead.toml",
        "ok": True,
        "problems": [],
        "warnings": [],
    }


def test_config_check_names_all_mistakes_at_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[services.x]\nlimit = 0\nurl = "nowhere"\n[server]\nport = "high"\n')
    done = fairlead("config", "check", "--config", str(file), cwd=tmp_path)
    assert done.code == Exit.USAGE
    lines = done.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{file}: ") for line in lines)
    as_json = fairlead("config", "check", "--config", str(file), "--json", cwd=tmp_path)
    assert (as_json.code, as_json.json["ok"], as_json.json["problems"]) == (Exit.USAGE, False, lines)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[pipelines]\nart = ["paint"]\n', "pipelines.art"),
        ('[services.x]\nlimit = 1\nurl = "http://a/b"\npool = "p"\n', "services.x.pool"),
        ("[services.x]\nlimit = 1\n[pipelines]\nart = ['x']\n", "pipelines.art"),
    ],
)
def test_config_check_finds_contradictions(text: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text(text)
    done = fairlead("config", "check", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert done.err.startswith(f"fairlead.toml: {key}: ")


def test_config_check_names_the_services_for_turns_only(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text("[services.flux]\nlimit = 1\n")
    done = fairlead("config", "check", cwd=tmp_path)
    assert done.code == Exit.OK
    assert "services.flux: nothing executes it, so it is for turns only" in done.err


def test_config_check_and_show_include_the_services_of_an_app(tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(PROJECT)
    assert fairlead("config", "check", "project:app", cwd=tmp_path).code == Exit.OK
    shown = fairlead("config", "show", "project:app", "--json", cwd=tmp_path).json
    assert shown["services"]["echo"]["limit"] == 4
    assert shown["pipelines"] == {"two": ["echo", "gate"]}


@pytest.mark.parametrize(("attempts", "warned"), [(3, True), (4, False)])
def test_config_check_warns_of_delays_that_are_never_reached(attempts: int, warned: bool, tmp_path: Path) -> None:
    service = '[services.x]\nlimit = 1\nurl = "http://127.0.0.1:9/"\nbackoff = [60, 120, 180]\n'
    (tmp_path / "fairlead.toml").write_text(f"{service}max_attempts = {attempts}\n")
    done = fairlead("config", "check", "--json", cwd=tmp_path)
    assert (done.code, done.json["problems"]) == (Exit.OK, [])
    warning = (
        "fairlead.toml: services.x: backoff has 3 delays, but max_attempts = 3 makes at most 2 retries; "
        "for all delays, set max_attempts = 4"
    )
    assert done.json["warnings"] == ([warning] if warned else [])


@pytest.mark.parametrize(("host", "code"), [("127.0.0.1", Exit.OK), ("0.0.0.0", Exit.USAGE)])
def test_config_check_warns_of_a_weak_key(host: str, code: Exit, tmp_path: Path) -> None:
    env = {"FAIRLEAD_ADMIN_KEY": "s3cret\n", "FAIRLEAD_SERVER__HOST": host}
    assert "has 6 characters" in fairlead("config", "check", cwd=tmp_path, env=env).err
    done = fairlead("config", "check", "--json", cwd=tmp_path, env=env)
    assert done.code == code
    assert len(done.json["problems" if code else "warnings"]) == 1
    assert not done.json["warnings" if code else "problems"]


@pytest.mark.parametrize("form", [["--json"], []])
def test_config_show_hides_secrets(form: list[str], tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text(SECRETS)
    env = {"TRACE": "s3cret", "FAIRLEAD_ADMIN_KEY": "s3cret", "DATABASE_URL": "postgresql://ada:s3cret@db/x"}
    done = fairlead("config", "show", *form, cwd=tmp_path, env=env)
    assert done.code == Exit.OK
    assert "s3cret" not in done.out + done.err
    assert "env:TRACE" in done.out
    assert "paint.example" in done.out


def test_config_show_prints_a_valid_file(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text(SECRETS)
    env = {"TRACE": "x", "FAIRLEAD_SERVER__PORT": "8123"}
    shown = tomllib.loads(fairlead("config", "show", cwd=tmp_path, env=env).out)
    assert shown["server"]["port"] == 8123
    assert shown["services"]["far"]["regions"]["us"]["limit"] == 1
    assert shown["services"]["far"]["backoff"] == [1, 2]
    assert shown["pipelines"] == {"art": ["paint"]}


def test_config_show_of_an_invalid_file_reports_the_problem(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text("[server\n")
    done = fairlead("config", "show", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert "not valid TOML" in done.err


# ---------------------------------------------------------------- migrate


def test_migrate_creates_the_schema_once(tmp_path: Path) -> None:
    first = fairlead("migrate", "--json", cwd=tmp_path)
    assert first.code == Exit.OK
    assert (first.json["from"], first.json["database"]) == (0, "fairlead.db")
    again = fairlead("migrate", "--json", cwd=tmp_path).json
    assert again["from"] == again["to"] == first.json["to"]
    assert "nothing to do" in fairlead("migrate", cwd=tmp_path).out


def test_migrate_refuses_a_database_of_a_newer_version(tmp_path: Path) -> None:
    assert fairlead("migrate", cwd=tmp_path).code == Exit.OK
    file = tmp_path / "fairlead.db"
    newer = bytearray(file.read_bytes())
    newer[60:64] = (999).to_bytes(4, "big")
    file.write_bytes(newer)
    done = fairlead("migrate", "--json", cwd=tmp_path)
    assert done.code == Exit.REFUSED
    assert "999" in json.loads(done.err)["detail"]
    assert file.read_bytes() == bytes(newer)


def test_init_writes_an_app_that_passes_its_check_and_overwrites_nothing(tmp_path: Path) -> None:
    assert fairlead("init", "studio", cwd=tmp_path).code == Exit.OK
    checked = fairlead("config", "check", "app:app", cwd=tmp_path / "studio")
    assert (checked.code, checked.out.strip()) == (Exit.OK, "fairlead.toml: ok, 2 services, 1 pipeline")
    (tmp_path / "studio" / "app.py").write_text("mine", encoding="utf-8")
    (tmp_path / "studio" / "fairlead.toml").unlink()
    refused = fairlead("init", "studio", cwd=tmp_path)
    assert refused.code == Exit.REFUSED
    assert "app.py already exists" in refused.err
    assert [path.name for path in (tmp_path / "studio").glob("*.*")] == ["app.py"]


def test_docs_lists_the_pages_and_prints_one(tmp_path: Path) -> None:
    assert "openai               The OpenAI front" in fairlead("docs", cwd=tmp_path).out
    assert fairlead("docs", "openai", cwd=tmp_path).out.startswith("# The OpenAI front")
    unknown = fairlead("docs", "opnai", cwd=tmp_path)
    assert (unknown.code, "similar pages: openai" in unknown.err) == (Exit.USAGE, True)


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fairlead", "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"fairlead {package.__version__}"
