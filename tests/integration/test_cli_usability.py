"""What a newcomer and an operator try first: options in any order, durations, unknown names, completion, live views."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

import pytest

from fairlead.cli.failure import Exit
from tests.integration.cli_fork import Forked
from tests.integration.cli_process import DEADLINE_S, Up, environment, fairlead, up

NOWHERE = "http://127.0.0.1:9"
COLUMNS = 80


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("server")) as running:
        yield running


def submitted(server: Up, *arguments: str) -> str:
    done = server.run("submit", *arguments, "--json")
    assert done.code == Exit.OK, done.err
    return str(done.json["job_id"])


# ---------------------------------------------------------------- --url


def test_the_url_option_goes_before_the_environment(server: Up) -> None:
    nowhere = {"FAIRLEAD_URL": NOWHERE}
    for command in (["status"], ["list"], ["workers"], ["workers", "list"], ["batch", "list"], ["dead", "list"]):
        done = fairlead(*command, "--url", server.url, "--json", cwd=server.cwd, env=nowhere)
        assert (done.code, done.err) == (Exit.OK, ""), command
    before = fairlead("workers", "--url", server.url, "list", "--json", cwd=server.cwd, env=nowhere)
    assert before.code == Exit.OK
    turn = fairlead("turn", "--url", server.url, "echo", "true", cwd=server.cwd, env=nowhere)
    assert turn.code == Exit.OK


def test_the_url_option_stands_before_the_command_too(server: Up) -> None:
    nowhere = {"FAIRLEAD_URL": NOWHERE}
    for command in (["status"], ["workers", "list"], ["dead", "list"]):
        done = fairlead("--url", server.url, *command, "--json", cwd=server.cwd, env=nowhere)
        assert (done.code, done.err) == (Exit.OK, ""), command
    both = fairlead("--url", NOWHERE, "status", "--url", server.url, "--json", cwd=server.cwd)
    assert both.code == Exit.OK
    assert completed(server, f"--url {server.url} pause st", FAIRLEAD_URL=NOWHERE) == ["stubborn", "stuck"]


@pytest.mark.parametrize("command", ["keys list", "config check", "up"])
def test_the_url_option_is_refused_before_a_command_without_a_gateway(command: str, tmp_path: Path) -> None:
    done = fairlead("--url", NOWHERE, *command.split(), cwd=tmp_path)
    assert (done.code, "calls no gateway; omit --url" in done.err) == (Exit.USAGE, True)


def test_a_wrong_url_option_is_refused(tmp_path: Path) -> None:
    done = fairlead("list", "--url", "nonsense", cwd=tmp_path)
    assert (done.code, "should be a URL" in done.err) == (Exit.USAGE, True)
    assert "FAIRLEAD_URL:" not in done.err


# ---------------------------------------------------------------- turn


@pytest.mark.parametrize(
    "arguments",
    ["--user ada echo -- echo hi --user x", "echo --user ada -- echo hi --user x", "echo --user ada echo hi --user x"],
)
def test_options_of_a_turn_in_any_place(server: Up, arguments: str) -> None:
    done = server.run("turn", *arguments.split())
    assert (done.code, done.out) == (Exit.OK, "hi --user x\n")


def test_a_turn_shows_its_help_after_the_service_too(tmp_path: Path) -> None:
    assert "COMMAND" in fairlead("turn", "echo", "--help", cwd=tmp_path).out


# ---------------------------------------------------------------- durations


def test_durations_have_units(server: Up) -> None:
    user = f"user-{uuid4()}"
    job_id = submitted(server, "echo", "--user", user, "--delay", "5m", "--deadline", "2h")
    assert [job["job_id"] for job in server.run("list", "--user", user, "--since", "1h", "--json").json] == [job_id]
    assert server.run("list", "--user", user, "--until", "1h", "--json").json == []
    assert server.run("dead", "list", "--user", user, "--since", "2d", "--json").json == []
    job = server.run("get", job_id, "--json").json
    assert job["status"] == "SCHEDULED"
    waited = server.run("submit", "echo", "--delay", "1h", "--wait", "100ms")
    assert waited.code == Exit.NOT_FINISHED
    assert "fairlead watch" in waited.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit", "echo", "--delay", "5x"], "not a duration"),
        (["list", "--since", "soon"], "not a time"),
        (["turn", "--wait-timeout", "soon", "echo", "true"], "not a duration"),
    ],
)
def test_a_wrong_duration_is_a_usage_error(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = fairlead(*arguments, cwd=tmp_path, env={"FAIRLEAD_URL": NOWHERE})
    assert (done.code, message in done.err) == (Exit.USAGE, True)


# ---------------------------------------------------------------- limit, names, keys


def test_limit_without_a_number_shows_the_limit_and_its_use(server: Up) -> None:
    assert server.run("limit", "stuck").out.strip() == "stuck  limit 1, 0 in use, 0 waiting"
    server.run("limit", "stuck", "3")
    assert "limit 3 (set by an operator)" in server.run("limit", "stuck").out
    assert server.run("limit", "stuck", "--json").json["in_use"] == 0
    assert server.run("limit", "stuck", "--lift").code == Exit.OK


@pytest.mark.parametrize(
    "command", ["limit SERVICE", "limit SERVICE 2", "pause SERVICE", "rebuild SERVICE", "submit SERVICE"]
)
def test_an_unknown_service_is_refused_with_the_known_ones(server: Up, command: str) -> None:
    done = server.run(*command.replace("SERVICE", "gaet").split())
    assert done.code == Exit.REFUSED
    assert "'gaet'; known are: broken, echo, flaky, gate," in done.err


@pytest.mark.parametrize("command", ["list", "list --json", "requeue --yes", "purge --dry-run"])
def test_failed_jobs_of_an_unknown_service_are_refused_with_the_known_ones(server: Up, command: str) -> None:
    done = server.run("dead", *command.split(), "--service", "gaet")
    assert done.code == Exit.REFUSED
    assert "'gaet'; known are: broken, echo, flaky, gate," in done.err
    none = server.run("dead", *command.split(), "--service", "stuck")
    assert (none.code, "known are" in none.err) == (Exit.OK, False)


def test_an_unknown_worker_is_refused_with_the_known_ones(server: Up) -> None:
    (worker,) = server.run("workers", "--json").json
    done = server.run("workers", "drain", "somebody")
    assert (done.code, f"known are: {worker['name']}" in done.err) == (Exit.REFUSED, True)


@pytest.mark.parametrize("command", ["get", "watch", "why", "resume", "batch get"])
def test_what_is_not_an_id_is_refused_with_where_to_find_ids(command: str, tmp_path: Path) -> None:
    done = fairlead(*command.split(), "image_gen", cwd=tmp_path, env={"FAIRLEAD_URL": NOWHERE})
    assert done.code == Exit.USAGE
    assert re.search(r"'image_gen' is not the id of a \w+; `fairlead [\w ]*list` shows ids", done.err)


@pytest.mark.parametrize("option", ["--idempotency-key", "--key"])
def test_a_repeated_submit_with_an_idempotency_key_creates_one_job(server: Up, option: str) -> None:
    key = str(uuid4())
    assert submitted(server, "echo", option, key) == submitted(server, "echo", option, key)
    (server.cwd / "items.jsonl").write_text('{"feature_name": "echo"}\n')
    batches = [
        server.run("batch", "submit", "items.jsonl", "--user", "ada", option, key, "--json").json["batch_id"]
        for _ in range(2)
    ]
    assert batches[0] == batches[1]


def test_the_old_name_of_the_idempotency_key_is_not_in_the_help(tmp_path: Path) -> None:
    for command in (("submit",), ("batch", "submit")):
        shown = fairlead(*command, "--help", cwd=tmp_path).out
        assert "--idempotency-key" in shown
        assert "--key" not in shown


def test_help_groups_the_commands(tmp_path: Path) -> None:
    shown = fairlead("--help", cwd=tmp_path).out
    panels = re.findall(r"─ (\w[\w ]*) ─", shown)
    assert panels == ["Options", "Jobs", "Queue", "Operate", "Run", "Set up"]


# ---------------------------------------------------------------- hints


def test_a_failure_is_followed_by_the_next_command(server: Up) -> None:
    failed = server.run("submit", "broken", "--wait")
    assert failed.code == Exit.JOB_FAILED
    job_id = failed.out.split()[1]
    assert re.search(rf"again with: fairlead .*{job_id}", failed.err)
    assert f"fairlead get {job_id}" in server.run("watch", job_id).err
    assert job_id in server.run("get", job_id).err
    assert server.run("get", job_id, "--json").err == ""


# ---------------------------------------------------------------- completion


def completed(server: Up, words: str, **env: str) -> list[str]:
    """What bash offers for the last of the words."""
    line = {"_FAIRLEAD_COMPLETE": "complete_bash", "COMP_WORDS": f"fairlead {words}"}
    count = {"COMP_CWORD": str(len(words.split(" ")))}
    done = fairlead(cwd=server.cwd, env={"FAIRLEAD_URL": server.url, **line, **count, **env})
    assert (done.code, done.err) == (0, "")
    return done.out.split()


def test_the_shell_completes_names_and_ids(server: Up) -> None:
    assert completed(server, "pause st") == ["stubborn", "stuck"]
    assert completed(server, "turn ga") == ["gate"]
    job_id = submitted(server, "two", "--delay", "1h")
    assert completed(server, "submit tw") == ["two"]
    assert job_id in completed(server, "get ")
    (worker,) = server.run("workers", "--json").json
    # bash counts a colon as the end of a word; the shell gets whole names.
    assert completed(server, "workers drain ") == [worker["name"]]


def test_completion_is_silent_without_a_gateway(server: Up) -> None:
    assert completed(server, "pause st", FAIRLEAD_URL=NOWHERE) == []
    assert completed(server, "pause st", FAIRLEAD_URL="nonsense") == []
    assert completed(server, "get ", FAIRLEAD_URL=NOWHERE) == []
    assert completed(server, f"pause --url {server.url} st", FAIRLEAD_URL=NOWHERE) == ["stubborn", "stuck"]


# ---------------------------------------------------------------- --watch


class Terminal:
    """A command in a terminal of 80 columns, and what it has drawn so far."""

    def __init__(self, process: Forked, screen: IO[bytes]) -> None:
        self.process, self.screen, self.drawn = process, screen, ""

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.drawn):
            assert time.monotonic() < deadline, f"never drew {pattern!r}, only:\n{self.drawn}"
            try:
                self.drawn += os.read(self.screen.fileno(), 65536).decode()
            except BlockingIOError:
                time.sleep(0.02)

    def lines(self) -> list[str]:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.drawn).replace("\r", "\n").splitlines()


@contextmanager
def in_terminal(server: Up, *arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    os.set_blocking(ours, False)
    env = {name: value for name, value in environment({"FAIRLEAD_URL": server.url}).items() if name != "COLUMNS"}
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "wb", buffering=0) as output:
        env["TERM"] = "xterm"
        process = Forked(arguments, cwd=server.cwd, env=env, stdout=output, stderr=output)
        try:
            yield Terminal(process, screen)
        finally:
            process.kill()
            process.wait(DEADLINE_S)


@pytest.mark.parametrize("command", ["status", "list"])
def test_watch_refreshes_in_place_without_wrapping_and_ends_with_ctrl_c(server: Up, command: str) -> None:
    user = f"user-{uuid4()}"
    first = submitted(server, "echo", "--user", user, "--delay", "1h")
    with in_terminal(server, command, "--watch") as terminal:
        terminal.wait_for(first if command == "list" else "stuck +0/1")
        if command == "list":
            terminal.wait_for(submitted(server, "echo", "--user", user, "--delay", "1h"))
        else:
            server.run("pause", "stuck")
            terminal.wait_for("stuck .*paused")
            server.run("unpause", "stuck")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(DEADLINE_S) == Exit.INTERRUPTED
        terminal.wait_for(re.escape("\x1b[?25h"))
    assert max(map(len, terminal.lines())) <= COLUMNS
    assert "\x1b[1A" in terminal.drawn, "it redraws in place"
    assert "Traceback" not in terminal.drawn


# ---------------------------------------------------------------- keys


def test_a_missing_and_a_wrong_key_are_told_apart(tmp_path: Path) -> None:
    with up(tmp_path, env={"FAIRLEAD_ADMIN_KEY": "admin-secret-admin-secret"}) as locked:
        missing = locked.run("list")
        assert (missing.code, missing.err) == (
            Exit.REFUSED,
            "the gateway needs a key: set FAIRLEAD_API_KEY (unauthorized)\n",
        )
        env = {"FAIRLEAD_URL": locked.url, "FAIRLEAD_API_KEY": "wrong"}
        wrong = fairlead("turn", "echo", "true", cwd=tmp_path, env=env)
        assert (wrong.code, "refuses the key in FAIRLEAD_API_KEY" in wrong.err) == (Exit.REFUSED, True)
        right = {**env, "FAIRLEAD_API_KEY": "admin-secret-admin-secret"}
        assert fairlead("list", cwd=tmp_path, env=right).code == Exit.OK
