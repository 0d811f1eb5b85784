"""The client commands against a real `fairlead up`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from fairlead.cli.failure import Exit
from tests.integration.cli_process import COMMAND, DEADLINE_S, Done, Up, fairlead, started, up


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def gated(gate: Path) -> str:
    return json.dumps({"gate": str(gate), "entered": f"{gate}-entered"})


def until_entered(gate: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not Path(f"{gate}-entered").exists():
        assert time.monotonic() < deadline, "the handler never started"
        time.sleep(0.01)


def submitted(server: Up, *arguments: str) -> str:
    done = server.run("submit", *arguments, "--json")
    assert done.code == Exit.OK, done.err
    return str(done.json["job_id"])


# ---------------------------------------------------------------- submit


def test_a_job_can_name_its_regions(server: Up) -> None:
    job_id = submitted(server, "echo", "--region", "eu")
    job = server.run("get", job_id, "--json").json
    assert (job["region"], job["allowed_regions"]) == ("eu", None)
    nowhere = server.run("submit", "echo", "--region", "eu", "--allowed-regions", "us,eu")
    assert (nowhere.code, "none of its services has regions" in nowhere.err) == (Exit.REFUSED, True)
    done = server.run("submit", "echo", "--region", "eu", "--allowed-regions", "us")
    assert done.code == Exit.REFUSED
    assert "not among allowed_regions" in done.err


def test_submit_prints_the_id_and_get_shows_the_job(server: Up) -> None:
    job_id = submitted(server, "echo", '{"a": 1}', "--user", "ada", "--priority", "high", "--metadata", '{"m": 2}')
    done = server.run("get", job_id, "--json")
    assert done.code == Exit.OK
    job = done.json
    assert (job["user_id"], job["priority"], job["metadata"], job["input_data"]) == ("ada", "high", {"m": 2}, {"a": 1})
    shown = server.run("get", job_id)
    assert shown.code == Exit.OK
    assert job_id in shown.out
    assert "ada" in shown.out


@pytest.mark.parametrize("source", ["argument", "--input", "--file", "stdin", "--param"])
def test_the_input_can_come_from_an_argument_a_file_or_stdin(server: Up, source: str, tmp_path: Path) -> None:
    text = '{"prompt": "a harbour", "steps": 30}'
    (tmp_path / "input.json").write_text(text)
    arguments = {
        "argument": [text],
        "--input": ["--input", text],
        "--file": ["--file", str(tmp_path / "input.json")],
        "stdin": ["--file", "-"],
        "--param": ["-p", "prompt=a harbour", "-p", "steps=30"],
    }[source]
    done = server.run("submit", "echo", *arguments, "--wait", "--json", stdin=text if source == "stdin" else "")
    assert done.code == Exit.OK
    assert done.json["result"] == {"prompt": "a harbour", "steps": 30}


def test_wait_shows_the_progress_on_stderr_and_the_result_on_stdout(server: Up) -> None:
    done = server.run("submit", "echo", '{"text": "hello"}', "--wait")
    assert done.code == Exit.OK
    assert '"text": "hello"' in done.out
    assert "COMPLETED" in done.err


def test_wait_times_out_and_the_job_continues(server: Up, gate: Path) -> None:
    done = server.run("submit", "gate", gated(gate), "--wait", "0.2", "--json")
    assert done.code == Exit.NOT_FINISHED
    gate.touch()
    assert server.run("watch", done.json["job_id"]).code == Exit.OK


def test_a_key_creates_one_job(server: Up) -> None:
    key = str(uuid4())
    first = submitted(server, "echo", '{"a": 1}', "--key", key)
    assert submitted(server, "echo", '{"a": 1}', "--key", key) == first
    other = server.run("submit", "echo", '{"a": 2}', "--key", key, "--json")
    assert other.code == Exit.REFUSED
    assert json.loads(other.err)["code"] == "idempotency_mismatch"


def test_a_delayed_job_is_scheduled_and_can_be_cancelled(server: Up) -> None:
    delayed = submitted(server, "echo", "--delay", "3600")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    moment, deadline = tomorrow.isoformat(), (tomorrow + timedelta(days=1)).isoformat()
    at = submitted(server, "echo", "--at", moment, "--deadline", deadline)
    listed = server.run("list", "--status", "scheduled", "--all", "--json")
    assert {delayed, at} <= {job["job_id"] for job in listed.json}
    done = server.run("cancel", delayed, at)
    assert done.code == Exit.OK
    assert done.out.count("cancelled") == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["echo", "{"], "not JSON"),
        (["echo", "[1]"], "JSON object"),
        (["echo", '{"a": NaN}'], "NaN"),
        (["echo", "{}", "--input", "{}"], "once"),
        (["echo", "-p", "novalue"], "KEY=VALUE"),
        (["echo", "--file", "nowhere.json"], "nowhere.json"),
        (["echo", "--metadata", "x"], "--metadata"),
        (["echo", "--priority", "urgent"], "high"),
        (["echo", "--wait", "-1"], "--wait"),
        (["echo", "--no-such-option"], "No such option"),
        ([], "FEATURE"),
    ],
)
def test_a_wrong_command_is_reported_without_a_request(arguments: list[str], text: str, tmp_path: Path) -> None:
    unreachable = {"FAIRLEAD_URL": "http://127.0.0.1:9"}
    done = fairlead("submit", *arguments, cwd=tmp_path, env=unreachable)
    assert done.code == Exit.USAGE
    assert text in done.err
    assert "Traceback" not in done.err


def test_a_refusal_is_one_line(server: Up) -> None:
    done = server.run("submit", "nothing_like_this")
    assert done.code == Exit.REFUSED
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert "nothing_like_this" in line
    assert "unknown_feature" in line


# ---------------------------------------------------------------- get, list, cancel, resume


def test_an_unknown_job_is_reported(server: Up) -> None:
    done = server.run("get", "01a1e1d7-0000-7000-8000-000000000000")
    assert done.code == Exit.REFUSED
    assert "not_found" in done.err


def test_list_filters_and_counts(server: Up) -> None:
    user = f"user-{uuid4()}"
    jobs = [submitted(server, "echo", "--user", user) for _ in range(3)]
    everything = server.run("list", "--user", user, "--json").json
    assert [job["job_id"] for job in everything] == jobs[::-1]
    assert len(server.run("list", "--user", user, "--limit", "2", "--json").json) == 2
    assert server.run("list", "--user", user, "--feature", "gate", "--json").json == []
    assert len(server.run("list", "--user", user, "--since", "2000-01-01", "--until", "2999-01-01", "--json").json) == 3
    assert server.run("list", "--user", user, "--until", "2000-01-01", "--json").json == []
    table = server.run("list", "--user", user).out
    assert all(job_id in table for job_id in jobs)


def test_list_all_follows_the_pages(server: Up) -> None:
    user = f"user-{uuid4()}"
    bulk = {"jobs": [{"user_id": user, "feature_name": "echo", "delay": 9999}] * 250}
    httpx2.post(f"{server.url}/api/v1/jobs/bulk", json=bulk, trust_env=False).raise_for_status()
    assert len(server.run("list", "--user", user, "--all", "--json").json) == 250
    assert len(server.run("list", "--user", user, "--limit", "120", "--json").json) == 120


def test_cancel_reports_each_job(server: Up, gate: Path) -> None:
    job_id = submitted(server, "gate", gated(gate))
    until_entered(gate)
    done = server.run("cancel", job_id, "01a1e1d7-0000-7000-8000-000000000000", "--json")
    assert done.code == Exit.REFUSED
    assert [job["job_id"] for job in done.json["cancelled"]] == [job_id]
    assert [refused["problem"]["code"] for refused in done.json["refused"]] == ["not_found"]
    assert server.run("watch", job_id).code == Exit.JOB_CANCELLED
    again = server.run("cancel", job_id)
    assert again.code == Exit.REFUSED
    assert "wrong_state" in again.err


def test_resume_restarts_a_failed_job(server: Up, gate: Path) -> None:
    failed = server.run("submit", "flaky", gated(gate), "--wait", "--json")
    assert failed.code == Exit.JOB_FAILED
    job_id = failed.json["job_id"]
    assert "may be resumed" in server.run("get", job_id).out
    gate.touch()
    assert server.run("resume", job_id).code == Exit.OK
    assert server.run("watch", job_id).code == Exit.OK


def test_retry_reruns_one_step(server: Up, gate: Path) -> None:
    gate.touch()
    done = server.run("submit", "two", gated(gate), "--wait", "--json")
    assert done.code == Exit.OK
    job_id = done.json["job_id"]
    assert server.run("retry", job_id, "0").code == Exit.OK
    assert server.run("watch", job_id).code == Exit.OK
    assert [each["step"] for each in server.run("get", job_id, "--json").json["history"]] == [0]
    refused = server.run("retry", job_id, "7")
    assert refused.code != Exit.OK
    assert "0 to 1" in refused.err


def test_retry_works_after_a_permanent_error_and_warns(server: Up) -> None:
    job_id = fails(server, f"user-{uuid4()}")
    retried = server.run("retry", job_id)
    assert (retried.code, retried.out.split()[0]) == (Exit.OK, job_id)
    assert "permanent" in retried.err
    failed_again = server.run("watch", job_id)
    assert failed_again.code == Exit.JOB_FAILED
    assert f"fairlead retry {job_id}" in failed_again.err
    assert server.run("retry", job_id, "--json").json["warning"]


def test_retry_continues_at_the_failed_step_or_begins_again(server: Up, gate: Path) -> None:
    failed = server.run("submit", "flaky", gated(gate), "--wait", "--json")
    assert failed.code == Exit.JOB_FAILED
    job_id = failed.json["job_id"]
    assert server.run("retry", job_id).code == Exit.OK
    assert server.run("watch", job_id).code == Exit.JOB_FAILED
    gate.touch()
    assert server.run("retry", job_id, "--from-start").code == Exit.OK
    assert server.run("watch", job_id).code == Exit.OK
    acts = [act for act in server.run("audit", "--action", "job.retry", "--json").json if act["target"] == job_id]
    assert [act["details"]["from_start"] for act in acts] == [True, False]
    again = server.run("retry", job_id)
    assert (again.code, "wrong_state" in again.err) == (Exit.REFUSED, True)
    both = server.run("retry", job_id, "0", "--from-start")
    assert (both.code, "--from-start" in both.err) == (Exit.USAGE, True)


# ---------------------------------------------------------------- watch


def test_watch_follows_a_job_to_its_end(server: Up, gate: Path) -> None:
    job_id = submitted(server, "two", gated(gate))
    until_entered(gate)
    with started((*COMMAND, "watch", job_id), cwd=server.cwd, env={"FAIRLEAD_URL": server.url}) as watching:
        watching.wait_for("step 2/2 gate")
        gate.touch()
        watching.wait_for("COMPLETED")
        assert watching.ended() == Exit.OK


def test_watch_prints_events_as_json(server: Up) -> None:
    job_id = submitted(server, "broken")
    done = server.run("watch", job_id, "--json")
    assert done.code == Exit.JOB_FAILED
    events = [json.loads(line) for line in done.out.splitlines()]
    assert events[0]["type"] == "SNAPSHOT"
    assert events[-1].get("job", events[-1]).get("job_id") == job_id


def test_watching_an_unknown_job_is_refused(server: Up) -> None:
    assert server.run("watch", "01a1e1d7-0000-7000-8000-000000000000").code == Exit.REFUSED


# ---------------------------------------------------------------- dead, status

UNKNOWN = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"


def fails(server: Up, user: str) -> str:
    done = server.run("submit", "broken", "--user", user, "--wait", "--json")
    assert done.code == Exit.JOB_FAILED
    return str(done.json["job_id"])


def test_dead_letters_are_listed_requeued_and_purged(server: Up) -> None:
    user = f"user-{uuid4()}"
    first, second = fails(server, user), fails(server, user)
    listed = server.run("dead", "list", "--user", user, "--json").json
    assert [job["job_id"] for job in listed] == [second, first]
    assert "no way" in (shown := server.run("dead", "list", "--user", user).out)
    assert "permanent" in shown

    requeued = server.run("dead", "requeue", first, "--json")
    assert (requeued.code, requeued.json["requeued"]) == (Exit.OK, 1)
    assert server.run("watch", first).code == Exit.JOB_FAILED

    dry = server.run("dead", "purge", "--user", user, "--dry-run", "--json")
    assert (dry.json["purged"], [job["job_id"] for job in dry.json["sample"]]) == (2, [second, first])
    mine = ("--user", user, "--service", "broken", "--error", "PERMANENT", "--permanent", "--since", "2000-01-01")
    assert first in server.run("dead", "requeue", *mine, "--dry-run").out
    assert server.run("dead", "list", *mine, "--until", "2000-01-02", "--json").json == []
    assert len(server.run("dead", "list", *mine, "--like", listed[0]["error"]["message"], "--json").json) == 2
    assert (
        server.run("dead", "purge", "--user", user, "--like", "another way", "--dry-run", "--json").json["purged"] == 0
    )
    for verb in ("requeue", "purge"):
        unknown = server.run("dead", verb, UNKNOWN, "--yes")
        assert (unknown.code, unknown.out.strip()) == (Exit.REFUSED, f"0 jobs {verb}d")
        assert UNKNOWN in unknown.err
        done = server.run("dead", verb, UNKNOWN, "--yes", "--json")
        assert (done.code, done.json["missing"]) == (Exit.REFUSED, [UNKNOWN])
    unsure = server.run("dead", "purge", "--user", user)
    assert unsure.code == Exit.USAGE
    assert "--yes" in unsure.err
    assert server.run("dead", "purge", "--user", user, "--yes").out.strip() == "2 jobs purged"
    assert server.run("dead", "list", "--user", user, "--json").json == []


@pytest.mark.parametrize("arguments", [[], ["--all", "--user", "x"], ["some-id", "--all"]])
def test_dead_commands_need_an_explicit_selection(arguments: list[str], tmp_path: Path) -> None:
    done = fairlead("dead", "purge", "--yes", *arguments, cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert "select jobs by id" in done.err


def test_status_shows_the_workers_the_managers_and_the_overrides(server: Up) -> None:
    httpx2.put(f"{server.url}/admin/services/echo/limit", json={"limit": 7}, trust_env=False).raise_for_status()
    (worker,) = server.run("workers", "--json").json
    shown = server.run("status").out
    assert worker["name"] in shown
    assert f"manager {worker['name']}: leads main" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("echo")]
    assert "limit 7 by an operator" in line
    httpx2.delete(f"{server.url}/admin/services/echo/limit", trust_env=False).raise_for_status()


def test_a_worker_is_listed_drained_and_resumed(server: Up) -> None:
    (worker,) = httpx2.get(f"{server.url}/admin/workers", trust_env=False).json()["data"]
    assert worker["name"] in server.run("workers", "list").out
    asked = server.run("workers", "drain", worker["name"])
    assert (asked.code, worker["name"] in asked.out) == (Exit.OK, True)
    undone = server.run("workers", "drain", worker["name"], "--undo", "--json")
    assert (undone.code, undone.json["drain_asked"]) == (Exit.OK, False)
    assert server.run("workers", "drain", "unknown").code == Exit.REFUSED
    assert server.run("submit", "echo", "{}", "--wait").code == Exit.OK


def test_status_shows_slots_and_waiting_jobs(server: Up, gate: Path) -> None:
    running = submitted(server, "gate", gated(gate))
    until_entered(gate)
    waiting = submitted(server, "gate", gated(gate), "--priority", "low")
    services = {each["service"]: each for each in server.run("status", "--json").json["services"]}
    assert (services["gate"]["in_use"], services["gate"]["limit"], services["gate"]["waiting"]["low"]) == (1, 1, 1)
    (line,) = [line for line in server.run("status").out.splitlines() if line.startswith("gate")]
    assert "1/1" in line
    assert "position" in server.run("get", waiting).out
    gate.touch()
    assert server.run("watch", running).code == Exit.OK
    assert server.run("watch", waiting).code == Exit.OK


# ---------------------------------------------------------------- untrusted text


def assert_harmless(done: Done) -> None:
    for stream in (done.out, done.err):
        assert "\x1b" not in stream
        assert not any(ord(character) < 32 and character != "\n" for character in stream)


def test_control_characters_and_markup_are_escaped(server: Up, gate: Path) -> None:
    done = server.run("submit", "broken", "--wait")
    assert_harmless(done)
    assert r"\x1b[2Jno way [red]at all[/red]\nnext line" in done.out
    job_id = submitted(server, "gate", gated(gate))
    until_entered(gate)
    shown = server.run("get", job_id)
    gate.touch()
    assert_harmless(shown)
    assert_harmless(server.run("dead", "list"))
    assert_harmless(server.run("list", "--json"))
    server.run("watch", job_id)


# ---------------------------------------------------------------- no gateway


@pytest.mark.parametrize("command", [["status"], ["list"], ["watch", UNKNOWN], ["cancel", UNKNOWN], ["submit", "x"]])
def test_without_a_gateway_the_error_names_the_url_and_a_remedy(command: list[str], tmp_path: Path) -> None:
    done = fairlead(*command, cwd=tmp_path, env={"FAIRLEAD_URL": "http://ada:pw@127.0.0.1:9"})
    assert done.code == Exit.NO_CONNECTION
    assert "127.0.0.1:9" in done.err
    assert "fairlead up" in done.err
    assert "pw" not in done.err
    assert "Traceback" not in done.err


def test_an_invalid_url_is_reported(tmp_path: Path) -> None:
    done = fairlead("status", cwd=tmp_path, env={"FAIRLEAD_URL": "nonsense"})
    assert done.code == Exit.USAGE
    assert "FAIRLEAD_URL" in done.err


@pytest.mark.parametrize("key", ["fl_schlüssel", "fl_a\x07b"])
def test_a_key_that_cannot_be_sent_is_reported(key: str, tmp_path: Path) -> None:
    done = fairlead("status", cwd=tmp_path, env={"FAIRLEAD_API_KEY": key})
    assert done.code == Exit.USAGE
    assert "FAIRLEAD_API_KEY: not a key" in done.err
    assert key not in done.err


# ---------------------------------------------------------------- operators


def test_a_service_is_paused_limited_and_rebuilt_and_the_audit_shows_it(server: Up) -> None:
    assert server.run("pause", "stuck", "--json").json["paused"] is True
    changed = server.run("limit", "stuck", "3")
    assert (changed.code, changed.out.strip()) == (Exit.OK, "stuck  limit 3 (configured: 1), paused")
    assert server.run("limit", "stuck", "--lift", "--json").json["override_limit"] is None
    assert server.run("unpause", "stuck").out.strip() == "stuck  limit 1"
    assert server.run("rebuild", "stuck", "--json").json["scopes"] == ["service:stuck"]
    rows = [row for row in server.run("audit", "--all", "--json").json if row["target"] == "stuck"]
    actions = ["service.rebuild", "service.resume", "service.lift_limit", "service.limit", "service.pause"]
    assert [row["action"] for row in rows] == actions
    shown = server.run("audit", "--action", "service.limit").out
    assert "limit=3 was=1" in shown
    server.run("rate", "stuck", "--requests", "7", "--per", "5")
    assert server.run("rate", "stuck", "--per", "5").code == Exit.USAGE
    server.run("rate", "stuck", "--lift")
    assert "rate=7 requests per 5 s was=None" in server.run("audit", "--action", "service.rate").out
    assert "service.pause" not in shown


def test_the_audit_shows_actions_on_a_job(server: Up) -> None:
    job_id = submitted(server, "echo", "--delay", "3600", "--user", "eve")
    assert server.run("cancel", job_id).code == Exit.OK
    [shown] = [line for line in server.run("audit", "--action", "job.cancel").out.splitlines() if job_id in line]
    assert "user_id=eve" in shown
    assert "status=SCHEDULED" in shown


def test_a_jobs_priority_is_changed_while_it_waits(server: Up) -> None:
    job_id = submitted(server, "echo", "--delay", "3600")
    done = server.run("priority", job_id, "high")
    assert (done.code, done.out.strip()) == (Exit.OK, f"{job_id}  high, SCHEDULED")
    server.run("cancel", job_id)
    ended = server.run("priority", job_id, "low", "--json")
    assert (ended.code, json.loads(ended.err)["code"]) == (Exit.REFUSED, "wrong_state")


def test_a_limit_is_a_number_or_removed(tmp_path: Path) -> None:
    done = fairlead("limit", "echo", "2", "--lift", cwd=tmp_path)
    assert (done.code, "--lift" in done.err) == (Exit.USAGE, True)


def test_an_operators_mistake_is_reported(server: Up) -> None:
    stopped = server.run("limit", "echo", "0")
    assert (stopped.code, "pause it instead" in stopped.err) == (Exit.REFUSED, True)
    unknown = server.run("pause", "none/../echo")
    assert unknown.code == Exit.REFUSED


# ---------------------------------------------------------------- why


def test_why_names_the_reason_and_the_holder_of_the_slot(server: Up, gate: Path) -> None:
    holder = submitted(server, "gate", gated(gate), "--user", "bob")
    until_entered(gate)
    waiting = submitted(server, "gate", gated(gate), "--user", "ada")
    shown = server.run("why", waiting)
    assert shown.code == Exit.OK
    assert "The limit of gate is full" in shown.out
    assert "position 1" in shown.out
    assert holder in shown.out
    why = server.run("why", waiting, "--json").json
    assert [reason["code"] for reason in why["reasons"]] == ["service_full", "in_line"]
    gate.touch()
    assert server.run("watch", waiting).code == Exit.OK
    assert "has ended" in server.run("why", waiting).out
    assert server.run("why", str(uuid4())).code == Exit.REFUSED
