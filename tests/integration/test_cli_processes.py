"""`fairlead api`, `worker` and `manager`: when they refuse to start, and a gateway beside `fairlead up`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx2
import pytest

from fairlead.cli.failure import Exit
from tests.integration.cli_process import DEADLINE_S, PROJECT, fairlead, running, up

SPLIT = """
[services.otp]
function = "project:echo"
shards = { redis_high = { bands = ["high"], limit = 2 }, main = { bands = ["medium", "low"], limit = 6 } }
[shards]
redis_high = "redis://ada:s3cret@127.0.0.1:9/0"
"""
NOWHERE = {"DATABASE_URL": "postgresql://ada:s3cret@127.0.0.1:9/x", "REDIS_URL": "redis://:s3cret@127.0.0.1:9/0"}


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("command", ["worker", "manager"])
@pytest.mark.parametrize("database", ["sqlite:///fairlead.db", NOWHERE["DATABASE_URL"]])
def test_without_redis_the_roles_refuse_to_start_with_advice(command: str, database: str, tmp_path: Path) -> None:
    done = fairlead(command, cwd=tmp_path, env={"DATABASE_URL": database})
    assert done.code == Exit.USAGE
    assert done.err.startswith(f"REDIS_URL: fairlead {command} needs a Redis")
    assert "set REDIS_URL" in done.err
    assert "fairlead up" in done.err
    assert "s3cret" not in done.err
    assert not (tmp_path / "fairlead.db").exists()


@pytest.mark.parametrize("command", ["up", "api", "worker", "manager"])
def test_redis_with_sqlite_is_refused(command: str, tmp_path: Path) -> None:
    done = fairlead(command, cwd=tmp_path, env={"REDIS_URL": NOWHERE["REDIS_URL"]})
    assert done.code == Exit.USAGE
    assert "DATABASE_URL=postgresql://" in done.err
    assert not (tmp_path / "fairlead.db").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--services", "echo,sing"), "--services: no service is called 'sing'; known are: broken, echo"),
        (("--regions", "us"), "--regions: no region is called 'us'; none is declared"),
        (("--pool", "high"), "--pool: no pool of workers is called 'high'; none is declared"),
        (("--pool", "high", "--bands", "low"), "--pool: the section defines what its worker takes"),
        (("--bands", "urgent"), "--bands: no band is called 'urgent'; known are: high, medium, low"),
        (("--concurrency", "0"), "--concurrency"),
    ],
)
def test_a_worker_cannot_be_bound_to_unknown_names(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(PROJECT)
    done = fairlead("worker", "project:app", *arguments, cwd=tmp_path, env=NOWHERE)
    assert done.code == Exit.USAGE
    assert text in done.err


def test_a_worker_without_services_refuses_to_start(tmp_path: Path) -> None:
    done = fairlead("worker", cwd=tmp_path, env=NOWHERE)
    assert done.code == Exit.USAGE
    assert "no services: pass MODULE:APP" in done.err


def test_refusals_are_json_for_programs(tmp_path: Path) -> None:
    done = fairlead("worker", "--json", cwd=tmp_path)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert json.loads(done.err)["code"] == "config_invalid"


@pytest.mark.parametrize("command", ["worker", "manager"])
def test_a_refused_start_opens_no_port(command: str, tmp_path: Path) -> None:
    done = fairlead(command, "--port", "0", cwd=tmp_path, env=NOWHERE)
    assert done.code == Exit.USAGE
    assert "--port" in done.err


# ---------------------------------------------------------------- config


def test_config_check_and_show_know_shards(tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(PROJECT)
    (tmp_path / "fairlead.toml").write_text(SPLIT)
    done = fairlead("config", "check", cwd=tmp_path, env=NOWHERE)
    assert (done.code, done.out.strip()) == (
        Exit.OK,
        "fairlead.toml: ok, 1 service, 0 pipelines, 1 shard beside the main one",
    )
    for form in (["--json"], []):
        shown = fairlead("config", "show", *form, cwd=tmp_path, env=NOWHERE)
        assert shown.code == Exit.OK
        assert "s3cret" not in shown.out
        assert "redis://ada:***@127.0.0.1:9/0" in shown.out
        assert "redis://:***@127.0.0.1:9/0" in shown.out


def test_config_check_names_engine_mistakes_too(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text(
        SPLIT.replace('["medium", "low"]', '["low"]').replace("project:echo", "no:f")
    )
    done = fairlead("config", "check", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert [line.split(": ")[1] for line in done.err.splitlines()] == [
        "services.otp.shards",
        "shards",
        "services.otp.function",
    ]


# ---------------------------------------------------------------- a gateway beside `up`


def test_a_process_beside_a_gateway_runs_its_jobs(tmp_path: Path) -> None:
    with up(tmp_path), running("api", tmp_path) as gateway:
        assert gateway.banner["dispatcher"] is None
        assert httpx2.get(f"{gateway.url}/livez", trust_env=False, timeout=DEADLINE_S).status_code == 200
        done = gateway.run("submit", "echo", '{"a": 1}', "--wait", "20", "--json")
        assert (done.code, done.json["result"]) == (Exit.OK, {"a": 1})


def test_a_gateway_accepts_jobs_without_a_dispatcher(tmp_path: Path) -> None:
    with running("api", tmp_path) as gateway:
        job_id = gateway.run("submit", "echo", "{}", "--json").json["job_id"]
        gateway.signal(signal.SIGTERM)
        assert gateway.ended() == Exit.OK
    with up(tmp_path) as server:
        assert server.run("watch", job_id).code == Exit.OK


def test_a_gateway_does_not_listen_beyond_loopback_without_a_key(tmp_path: Path) -> None:
    done = fairlead("api", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert "FAIRLEAD_ADMIN_KEY" in done.err
