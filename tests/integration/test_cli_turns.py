"""`fairlead turn`: a command that runs while a slot is held."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from fairlead.cli.failure import Exit
from tests.integration.cli_process import COMMAND, Up, started, up

CONFIG = '[services.slot]\nlimit = 1\norder = "fifo"\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "fairlead.toml").write_text(CONFIG)
    with up(folder) as running:
        yield running


def turn(server: Up, turn_id: str) -> dict[str, object]:
    return dict(httpx2.get(f"{server.url}/api/v1/turns/{turn_id}").json())


def test_a_command_runs_while_it_holds_the_slot(server: Up) -> None:
    code = "import os; print(os.environ['FAIRLEAD_TURN_ID'])"
    done = server.run("turn", "--json", "--user", "ada", "slot", sys.executable, "-c", code)
    turn_id, result = done.out.splitlines()
    assert done.code == Exit.OK, done.err
    assert json.loads(result) == {"turn_id": turn_id, "exit_code": 0}
    shown = turn(server, turn_id)
    assert (shown["status"], shown["user_id"], shown["result"]) == ("COMPLETED", "ada", {"exit_code": 0})


def test_the_exit_code_is_the_commands_and_a_failure_is_stored(server: Up) -> None:
    done = server.run("turn", "--json", "slot", sys.executable, "-c", "raise SystemExit(7)")
    assert done.code == 7
    shown = turn(server, json.loads(done.out)["turn_id"])
    assert shown["status"] == "FAILED"
    assert "ended with 7" in str(shown["error"])


def test_an_invalid_turn_command_is_reported(server: Up) -> None:
    assert "nowhere" in server.run("turn", "nowhere", "true").err
    assert "the cost must be more than 0" in server.run("turn", "slot", "--cost", "0", "true").err
    nothing = server.run("turn", "slot", "no-such-command")
    assert (nothing.code, "no-such-command cannot be run" in nothing.err) == (Exit.USAGE, True)


def test_the_second_caller_waits_and_a_lost_slot_stops_the_command(server: Up, tmp_path: Path) -> None:
    wait = (
        "import os, pathlib, time; "
        f"pathlib.Path({str(tmp_path / 'first')!r}).write_text(os.environ['FAIRLEAD_TURN_ID']); time.sleep(60)"
    )
    env = {"FAIRLEAD_URL": server.url}
    with started((*COMMAND, "turn", "slot", sys.executable, "-c", wait), cwd=tmp_path, env=env) as first:
        while not (tmp_path / "first").exists() or not (tmp_path / "first").read_text():
            assert first.process.poll() is None
            time.sleep(0.02)
        with started((*COMMAND, "turn", "slot", "true"), cwd=tmp_path, env=env) as second:
            second.wait_for("position 1 in the queue of slot")
            turn_id = (tmp_path / "first").read_text()
            httpx2.post(f"{server.url}/api/v1/jobs/{turn_id}/cancel").raise_for_status()
            assert second.ended() == Exit.OK
        assert first.ended() == Exit.REFUSED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_queue_or_ends_the_command(server: Up, tmp_path: Path, number: signal.Signals) -> None:
    begun = tmp_path / "begun"
    wait = f"import pathlib, time; pathlib.Path({str(begun)!r}).write_text('yes'); time.sleep(60)"
    env = {"FAIRLEAD_URL": server.url}
    with started((*COMMAND, "turn", "slot", sys.executable, "-c", wait), cwd=tmp_path, env=env) as first:
        while not begun.exists():
            assert first.process.poll() is None
            time.sleep(0.02)
        with started((*COMMAND, "turn", "--user", number.name, "slot", "true"), cwd=tmp_path, env=env) as second:
            second.wait_for("position 1 in the queue of slot")
            second.process.send_signal(number)
            assert second.ended() == 128 + number
        (waited,) = httpx2.get(f"{server.url}/api/v1/jobs?user_id={number.name}").json()["data"]
        assert waited["status"] == "CANCELLED"
        first.process.send_signal(number)
        assert first.ended() == 128 + number
    assert server.run("turn", "slot", "true").code == Exit.OK


def test_usage_is_shown_as_a_table_as_json_and_as_csv(server: Up) -> None:
    assert server.run("turn", "--user", "eve", "slot", sys.executable, "-c", "").code == Exit.OK
    done = server.run("usage", "--user", "eve", "--by", "user,service", "--json")
    (row,) = json.loads(done.out)
    assert (row["user"], row["service"], row["calls"]) == ("eve", "slot", 1)
    shown = server.run("usage", "--user", "eve", "--interval", "day").out
    assert "SERVICE" in shown
    assert "eve" in shown
    assert server.run("usage", "--user", "eve", "--csv", "--by", "user").out.splitlines()[1].startswith("eve,1,")
    assert "no calls" in server.run("usage", "--user", "nemo").err
    assert server.run("usage", "--by", "shoe_size").code == Exit.REFUSED
