"""`fairlead up`: how it starts, when it refuses to, and how it stops."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import httpx2
import pytest

from fairlead.cli.failure import Exit
from tests.integration.cli_process import COMMAND, DEADLINE_S, Up, fairlead, started, up


def gated(folder: Path) -> str:
    return json.dumps({"gate": str(folder / "gate"), "entered": str(folder / "entered")})


def until_there(file: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never appeared"
        time.sleep(0.01)


def submitted(server: Up, *arguments: str) -> str:
    done = server.run("submit", *arguments, "--json")
    assert done.code == Exit.OK, done.err
    return str(done.json["job_id"])


# ---------------------------------------------------------------- starting


def test_the_banner_lists_services_and_addresses(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text(
        """
        [services.paint]
        url = "http://ada:s3cret@127.0.0.1:9/v1/execute?token=s3cret"
        limit = 3
        [pipelines]
        art = ["paint"]
        """
    )
    command = (*COMMAND, "up", "--port", "0")
    with started(command, cwd=tmp_path) as server:
        server.wait_for("gateway")
        server.wait_for("art")
        output = "".join(server.output)
        server.signal(signal.SIGTERM)
        assert server.ended() == Exit.OK
    for part in ("fairlead 0", "fairlead.toml", "sqlite:///fairlead.db", "in memory", "http://127.0.0.1:", "paint"):
        assert part in output
    assert "s3cret" not in output


def test_everything_is_ready_when_the_banner_appears(tmp_path: Path) -> None:
    with up(tmp_path) as server:
        answer = httpx2.get(f"{server.url}/readyz", trust_env=False, timeout=DEADLINE_S)
        assert answer.status_code == 200


def test_all_problems_of_a_configuration_are_reported_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "fairlead.toml").write_text("[services.x]\nlimit = 0\n[server]\nport = -1\ncolour = 1\n")
    done = fairlead("up", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert {line.split(": ")[1] for line in done.err.splitlines()} == {
        "services.x.limit",
        "server.port",
        "server.colour",
    }
    assert not (tmp_path / "fairlead.db").exists()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("project", "module:name"),
        ("project:nothing", "nothing of that name"),
        ("project:other", "a int"),
    ],
)
def test_an_app_that_cannot_be_found_is_reported(path: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text("other = 1\n")
    done = fairlead("up", path, cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert text in done.err
    assert "Traceback" not in done.err


def test_an_app_has_its_own_configuration(tmp_path: Path) -> None:
    done = fairlead("up", "project:app", "--config", "x.toml", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert "--config" in done.err


def test_a_port_in_use_is_reported_before_anything_is_opened(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = fairlead("up", "--port", str(port), cwd=tmp_path)
    assert done.code == Exit.REFUSED
    assert f"port {port}" in done.err
    assert "--port" in done.err
    assert not (tmp_path / "fairlead.db").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_up_does_not_listen_beyond_loopback_without_a_key(host: str, tmp_path: Path) -> None:
    done = fairlead("up", "--host", host, "--port", "0", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert "FAIRLEAD_ADMIN_KEY" in done.err
    assert not (tmp_path / "fairlead.db").exists()


def test_up_does_not_listen_beyond_loopback_with_a_weak_key(tmp_path: Path) -> None:
    done = fairlead("up", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path, env={"FAIRLEAD_ADMIN_KEY": "s3cret"})
    assert done.code == Exit.USAGE
    assert "FAIRLEAD_ADMIN_KEY: has 6 characters" in done.err
    assert "s3cret" not in done.err
    assert not (tmp_path / "fairlead.db").exists()


def test_with_a_key_every_request_needs_it(tmp_path: Path) -> None:
    env = {"FAIRLEAD_ADMIN_KEY": "s3cret-of-some-length"}
    with up(tmp_path, "project:app", "--host", "0.0.0.0", env=env) as server:
        refused = server.run("list")
        assert refused.code == Exit.REFUSED
        assert "FAIRLEAD_API_KEY" in refused.err
        allowed = fairlead(
            "list",
            "--json",
            cwd=tmp_path,
            env={"FAIRLEAD_URL": server.url, "FAIRLEAD_API_KEY": "s3cret-of-some-length"},
        )
        assert (allowed.code, allowed.json) == (Exit.OK, [])
        assert "s3cret" not in "".join(server.output)


def test_a_second_process_on_the_same_database_refuses_with_advice(tmp_path: Path) -> None:
    with up(tmp_path) as first:
        second = fairlead("up", "project:app", "--port", "0", cwd=tmp_path)
        assert second.code == Exit.REFUSED
        assert str(first.process.pid) in second.err
        assert "stop it" in second.err
        assert "Traceback" not in second.err
        assert submitted(first, "echo")


def test_a_file_that_is_not_a_database_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "fairlead.db").write_text("a love letter, not a database" * 10)
    before = (tmp_path / "fairlead.db").read_bytes()
    for command in (("up", "--port", "0"), ("migrate",)):
        done = fairlead(*command, cwd=tmp_path)
        assert done.code == Exit.REFUSED
        assert "not a SQLite database" in done.err
    assert (tmp_path / "fairlead.db").read_bytes() == before


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_call_finish_and_requests_are_served_meanwhile(
    number: signal.Signals, tmp_path: Path
) -> None:
    with up(tmp_path) as server:
        running = submitted(server, "gate", gated(tmp_path))
        until_there(tmp_path / "entered")
        waiting = submitted(server, "gate", gated(tmp_path))
        server.signal(number)
        server.wait_for("draining")
        assert server.run("get", running, "--json").json["status"] == "RUNNING"
        (tmp_path / "gate").touch()
        assert server.ended() == Exit.OK
    with up(tmp_path) as again:
        # Finished calls are stored and waiting jobs run later: none runs twice, none is lost.
        job = again.run("get", running, "--json").json
        assert (job["status"], job["attempts"]) == ("COMPLETED", [])
        assert again.run("watch", waiting).code == Exit.OK


def test_a_call_that_does_not_finish_in_time_is_released(tmp_path: Path) -> None:
    with up(tmp_path, env={"FAIRLEAD_WORKER__DRAIN_TIMEOUT": "0.1"}) as server:
        job_id = submitted(server, "gate", gated(tmp_path))
        until_there(tmp_path / "entered")
        server.signal(signal.SIGTERM)
        assert server.ended() == Exit.OK
    (tmp_path / "gate").touch()
    with up(tmp_path) as again:
        assert again.run("watch", job_id).code == Exit.OK
        assert again.run("get", job_id, "--json").json["attempts"] == []


@pytest.mark.parametrize("service", ["stuck", "stubborn"])
def test_a_handler_that_cannot_be_stopped_does_not_block_the_exit(tmp_path: Path, service: str) -> None:
    with up(tmp_path, env={"FAIRLEAD_WORKER__DRAIN_TIMEOUT": "0.1"}) as server:
        submitted(server, service, gated(tmp_path))
        until_there(tmp_path / "entered")
        server.signal(signal.SIGTERM)
        assert server.ended() == Exit.OK


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    with up(tmp_path) as server:
        job_id = submitted(server, "gate", gated(tmp_path))
        until_there(tmp_path / "entered")
        server.signal(signal.SIGTERM)
        server.wait_for("draining")
        server.signal(signal.SIGTERM)
        assert server.ended() == Exit.INTERRUPTED
    (tmp_path / "gate").touch()
    with up(tmp_path) as again:
        assert again.run("watch", job_id).code == Exit.OK


def test_open_event_streams_do_not_block_the_exit(tmp_path: Path) -> None:
    with up(tmp_path) as server:
        job_id = submitted(server, "echo", "--delay", "3600")
        with started((*COMMAND, "watch", job_id), cwd=tmp_path, env={"FAIRLEAD_URL": server.url}) as watching:
            watching.wait_for("SCHEDULED")
            server.signal(signal.SIGTERM)
            assert server.ended() == Exit.OK
            # The watcher waits for the gateway to come back.
            watching.wait_for("trying again")


# ---------------------------------------------------------------- its log


def test_the_log_is_json_with_the_fields_of_jobs_and_requests(tmp_path: Path) -> None:
    arguments = ("project:app", "--log-format", "json", "--log-level", "debug")
    with up(tmp_path, *arguments) as server:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        body = {"user_id": "ada", "feature_name": "echo", "input_data": {"n": 1}}
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-request-id": "request-17"}
        job_id = httpx2.post(f"{server.url}/api/v1/jobs", json=body, headers=headers).json()["job_id"]
        server.wait_for("COMPLETED after")
        server.signal(signal.SIGTERM)
        assert server.ended() == Exit.OK
        log = [json.loads(line) for line in "".join(server.output).splitlines() if line.startswith('{"time"')]
        assert [line for line in "".join(server.output).splitlines() if " INFO " in line] == []
    (request,) = [line for line in log if line.get("path") == "/api/v1/jobs"]
    assert (request["request_id"], request["status"], request["method"]) == ("request-17", 202, "POST")
    (ended,) = [line for line in log if "COMPLETED after" in line["message"]]
    assert (ended["job_id"], ended["user_id"], ended["service"]) == (job_id, "ada", "echo")
    assert ended["trace_id"] == request["trace_id"] == trace


def test_an_unknown_format_of_the_log_is_refused(tmp_path: Path) -> None:
    done = fairlead("config", "check", cwd=tmp_path, env={"LOG_FORMAT": "xml"})
    assert (done.code, "LOG_FORMAT xml" in done.err) == (Exit.USAGE, True)
