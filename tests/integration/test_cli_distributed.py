"""`fairlead api`, `worker` and `manager` as real processes on a real PostgreSQL and Redis."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from fairlead.cli.failure import Exit
from tests.integration.cli_process import COMMAND, DEADLINE_S, Up, running, started
from tests.redis_servers import Server, port_of, start_server


@pytest.fixture
def redis_url() -> str:
    """A server of its own: the keys of two deployments would interfere."""
    client = start_server()
    client.close()
    return f"redis://127.0.0.1:{port_of(client)}/0"


@pytest.fixture
def engines(database: str, redis_url: str) -> dict[str, str]:
    return {"DATABASE_URL": database, "REDIS_URL": redis_url}


def gated(folder: Path) -> str:
    return json.dumps({"gate": str(folder / "gate"), "entered": str(folder / "entered")})


def until(there: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not there():
        assert time.monotonic() < deadline, f"{what} never happened"
        time.sleep(0.02)


def submitted(gateway: Up, *arguments: str) -> str:
    done = gateway.run("submit", *arguments, "--json")
    assert done.code == Exit.OK, done.err
    return str(done.json["job_id"])


def listening_ports(pid: int) -> set[str]:
    """As the kernel lists them: the sockets of this process in state 0A."""
    inodes = {
        link.removeprefix("socket:[").removesuffix("]")
        for each in Path(f"/proc/{pid}/fd").iterdir()
        if (link := os.readlink(each)).startswith("socket:[")
    }
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return {row[1] for row in rows[1:] if len(row) > 9 and row[3] == "0A" and row[9] in inodes}


def test_a_job_goes_through_a_gateway_a_worker_and_a_manager(tmp_path: Path, engines: dict[str, str]) -> None:
    with (
        running("manager", tmp_path, env=engines) as manager,
        running("worker", tmp_path, env=engines) as worker,
        running("api", tmp_path, env=engines) as one,
        running("api", tmp_path, env=engines) as other,
    ):
        (tmp_path / "gate").touch()
        done = one.run("submit", "two", gated(tmp_path), "--wait", "20", "--json")
        assert (done.code, done.json["result"]) == (Exit.OK, {"through": True})
        assert other.run("get", done.json["job_id"], "--json").json["status"] == "COMPLETED"
        for process in (manager, worker):
            assert listening_ports(process.process.pid) == set()
        for process in (one, other, worker, manager):
            process.signal(signal.SIGTERM)
        assert [process.ended() for process in (one, other, worker, manager)] == [Exit.OK] * 4


def test_everything_in_one_process_on_the_same_engines(tmp_path: Path, engines: dict[str, str]) -> None:
    with running("up", tmp_path, env=engines) as one, running("up", tmp_path, env=engines) as other:
        assert one.banner["dispatcher"] == engines["REDIS_URL"]
        for server in (one, other):
            answer = httpx2.get(f"{server.url}/readyz", trust_env=False, timeout=DEADLINE_S)
            assert answer.status_code == 200
            done = server.run("submit", "echo", '{"a": 1}', "--wait", "20", "--json")
            assert (done.code, done.json["result"]) == (Exit.OK, {"a": 1})


def test_a_manager_without_services_uses_the_rules_of_the_database(tmp_path: Path, engines: dict[str, str]) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with running("worker", tmp_path, env=engines) as worker, running("api", tmp_path, env=engines) as gateway:
        with started((*COMMAND, "manager", "--json"), cwd=elsewhere, env=engines) as manager:
            assert json.loads(manager.wait_for('"process"'))["services"] == {}
            done = gateway.run("submit", "echo", '{"a": 1}', "--delay", "0.2", "--wait", "20", "--json")
            assert (done.code, done.json["result"]) == (Exit.OK, {"a": 1})
            assert {each["service"] for each in gateway.run("status", "--json").json["services"]} >= {"echo", "gate"}
        assert worker.process.poll() is None


def test_a_worker_takes_only_the_services_and_bands_it_is_bound_to(tmp_path: Path, engines: dict[str, str]) -> None:
    bound = ("project:app", "--services", "echo", "--bands", "high", "--concurrency", "2")
    with (
        running("manager", tmp_path, env=engines),
        running("api", tmp_path, env=engines) as gateway,
        running("worker", tmp_path, *bound, env=engines) as worker,
    ):
        assert (list(worker.banner["services"]), worker.banner["bands"], worker.banner["concurrency"]) == (
            ["echo"],
            ["high"],
            2,
        )
        (tmp_path / "gate").touch()
        others = [submitted(gateway, "echo", "{}", "--priority", "low"), submitted(gateway, "gate", gated(tmp_path))]
        mine = submitted(gateway, "echo", "{}", "--priority", "high")
        assert gateway.run("watch", mine).code == Exit.OK
        assert [gateway.run("get", each, "--json").json["status"] for each in others] == ["PENDING", "PENDING"]
        with running("worker", tmp_path, env=engines):
            assert [gateway.run("watch", each).code for each in others] == [Exit.OK, Exit.OK]


def test_a_worker_lets_its_calls_finish(tmp_path: Path, engines: dict[str, str]) -> None:
    with (
        running("manager", tmp_path, env=engines),
        running("api", tmp_path, env=engines) as gateway,
        running("worker", tmp_path, env=engines) as worker,
    ):
        job_id = submitted(gateway, "gate", gated(tmp_path))
        until((tmp_path / "entered").exists, "the call")
        worker.signal(signal.SIGTERM)
        worker.wait_for("draining")
        (tmp_path / "gate").touch()
        assert worker.ended() == Exit.OK
        assert gateway.run("watch", job_id).code == Exit.OK
        assert gateway.run("get", job_id, "--json").json["attempts"] == []


def test_a_second_signal_ends_a_worker_at_once_and_another_takes_the_job(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    env = {**engines, "FAIRLEAD_SERVICES__GATE__LIMIT": "1", "FAIRLEAD_SERVICES__GATE__LEASE_TTL": "3"}
    with (
        running("manager", tmp_path, env=env),
        running("api", tmp_path, env=env) as gateway,
        running("worker", tmp_path, env=env) as worker,
    ):
        job_id = submitted(gateway, "gate", gated(tmp_path))
        until((tmp_path / "entered").exists, "the call")
        worker.signal(signal.SIGTERM)
        worker.wait_for("draining")
        worker.signal(signal.SIGINT)
        assert worker.ended() == Exit.INTERRUPTED
        (tmp_path / "gate").touch()
        with running("worker", tmp_path, env=env):
            assert gateway.run("watch", job_id).code == Exit.OK


def test_the_calls_of_a_killed_worker_are_recovered_long_before_their_leases_expire(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    with (
        running("manager", tmp_path, env=engines),
        running("api", tmp_path, env=engines) as gateway,
        running("worker", tmp_path, env=engines) as worker,
    ):
        job_id = submitted(gateway, "patient", gated(tmp_path))
        until((tmp_path / "entered").exists, "the call")
        worker.signal(signal.SIGKILL)
        (tmp_path / "gate").touch()
        with running("worker", tmp_path, env=engines):
            assert gateway.run("watch", job_id).code == Exit.OK
            (attempt,) = gateway.run("get", job_id, "--json").json["attempts"]
            assert attempt["error"]["code"] == "WORKER_DIED"
            workers = gateway.run("workers", "list", "--json")
            assert workers.code == Exit.OK, workers.err
            gone = [each for each in workers.json if not each["alive"]]
            assert [each["pid"] for each in gone] == [worker.process.pid]


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
def test_a_standby_takes_over(tmp_path: Path, engines: dict[str, str], way: signal.Signals) -> None:
    env = {**engines, "FAIRLEAD_MANAGER__LEADER_TTL": "2"}
    with (
        running("manager", tmp_path, env=env) as leader,
        running("manager", tmp_path, env=env),
        running("worker", tmp_path, env=env),
        running("api", tmp_path, env=env) as gateway,
    ):
        assert gateway.run("submit", "echo", "{}", "--wait", "20").code == Exit.OK
        leader.signal(way)
        leader.ended()
        assert gateway.run("submit", "echo", "{}", "--delay", "0.1", "--wait", "25").code == Exit.OK


def test_jobs_are_accepted_during_a_redis_outage_and_run_after_it(tmp_path: Path, database: str) -> None:
    server = Server().start()
    env = {"DATABASE_URL": database, "REDIS_URL": server.url}
    with (
        running("manager", tmp_path, env=env),
        running("worker", tmp_path, env=env),
        running("api", tmp_path, env=env) as gateway,
    ):
        assert gateway.run("submit", "echo", "{}", "--wait", "20").code == Exit.OK
        server.kill()
        job_id = submitted(gateway, "echo", "{}")
        server.start()
        assert gateway.run("watch", job_id).code == Exit.OK


def test_a_split_service_serves_high_during_an_outage_of_the_low_shard(tmp_path: Path, engines: dict[str, str]) -> None:
    low = start_server()
    (tmp_path / "fairlead.toml").write_text(
        f"""
        [shards]
        redis_low = "redis://127.0.0.1:{port_of(low)}/0"
        [services.echo]
        shards = {{ main = {{ bands = ["high"], limit = 2 }}, redis_low = {{ bands = ["medium", "low"], limit = 2 }} }}
        """
    )
    with (
        running("manager", tmp_path, env=engines),
        running("worker", tmp_path, env=engines) as worker,
        running("api", tmp_path, env=engines) as gateway,
    ):
        assert list(worker.banner["shards"]) == ["redis_low"]
        for priority in ("high", "medium", "low"):
            assert gateway.run("submit", "echo", "{}", "--priority", priority, "--wait", "20").code == Exit.OK
        low.shutdown(nosave=True)
        waits = submitted(gateway, "echo", "{}", "--priority", "low")
        assert gateway.run("submit", "echo", "{}", "--priority", "high", "--wait", "20").code == Exit.OK
        assert gateway.run("get", waits, "--json").json["status"] == "PENDING"


def test_a_gateway_beside_up_on_postgresql_without_redis(tmp_path: Path, database: str) -> None:
    env = {"DATABASE_URL": database}
    with running("up", tmp_path, env=env), running("api", tmp_path, env=env) as gateway:
        assert gateway.banner["dispatcher"] is None
        done = gateway.run("submit", "echo", '{"a": 1}', "--wait", "20", "--json")
        assert (done.code, done.json["result"]) == (Exit.OK, {"a": 1})
