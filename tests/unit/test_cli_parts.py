"""The command line's small parts, without a process or a gateway."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fairlead.cli import listen
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.follow import JobLine, end_of, hint_after
from fairlead.cli.jobs import hint_next, show_job
from fairlead.cli.logs import OneLine
from fairlead.cli.options import FOREVER, duration, future, moment, past, seconds_in
from fairlead.cli.output import clean, local_time, passing, safe, seconds, table, with_local_times
from fairlead.cli.redact import without_secrets
from fairlead.cli.root import SYNONYMS
from fairlead.cli.root import app as cli
from fairlead.cli.status import _override, _region_line
from fairlead.cli.submit import with_wait_value
from fairlead.cli.turn import options_first

# ---------------------------------------------------------------- output


@pytest.fixture
def _in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_in_tokyo")
def test_times_in_messages_of_the_gateway_are_local() -> None:
    message = "draw is tried again at 2026-01-31T23:00:00.500Z"
    assert with_local_times(message) == "draw is tried again at 2026-02-01 08:00:00"
    line = JobLine()
    line.take({"type": "JOB_RETRYING", "message": message})
    assert line.detail == "draw is tried again at 2026-02-01 08:00:00"


def test_a_traceback_that_repeats_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    attempts = [
        {"service": "draw", "attempt": n, "ended_at": None, "error": {"code": "X"}, "traceback": text}
        for n, text in enumerate(("line one\nValueError", "line one\nValueError", "KeyError", ""), 1)
    ]
    job = {"job_id": "1", "feature_name": "draw", "user_id": "ada", "status": "FAILED", "priority": "low"}
    show_job({**job, "current_step_index": 0, "total_steps": 1, "attempts": attempts})
    shown = capsys.readouterr().out
    assert (shown.count("ValueError"), shown.count("the same traceback"), shown.count("KeyError")) == (1, 1, 1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("blåbær 船", "blåbær 船"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\r\tc\0", r"a\nb\r\tc\x00"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2028", r"\u2028"),
        ("\ud800", r"\ud800"),
    ],
)
def test_invisible_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_markup_is_only_text() -> None:
    assert safe("[bold]x[/bold]").plain == "[bold]x[/bold]"
    assert safe("[bold]x[/bold]").spans == []


def test_a_log_line_stays_one_line() -> None:
    record = logging.LogRecord("n", logging.INFO, "p", 1, "job printed %s", ("a\n2026 CRITICAL forged\x1b[0m",), None)
    line = OneLine("%(levelname)s %(message)s").format(record)
    assert line == r"INFO job printed a\n2026 CRITICAL forged\x1b[0m"


def test_a_traceback_in_the_log_sends_no_control_characters_to_the_terminal() -> None:
    try:
        raise ValueError("\x1b[2J\r2026 CRITICAL forged\x9b")
    except ValueError:
        raised = logging.LogRecord("n", logging.ERROR, "p", 1, "failed", (), sys.exc_info())
    stored = logging.LogRecord("n", logging.ERROR, "p", 1, "failed", (), None, sinfo="    one\n    \x1b[2J\rtwo")
    formatter = OneLine("%(message)s")
    assert formatter.format(raised).splitlines()[-1] == r"ValueError: \x1b[2J\r2026 CRITICAL forged\x9b"
    assert formatter.format(stored) == "failed\n    one\n    " + r"\x1b[2J\rtwo"


def test_a_region_that_rests_says_so_first_and_in_local_time() -> None:
    until = "2026-01-31T12:00:00.000Z"
    there = {
        "running": 0,
        "limit": 1,
        "waiting": {"main": 3, "retry": 1},
        "latency": 2.5,
        "breaker": {"state": "resting", "resting_until": until, "failures": 5},
    }
    line = _region_line("inference", "eu", there, partly=False)
    assert line.startswith(f"inference in eu: rests until {local_time(until)} after 5 failures, 0/1 slots in use")


@pytest.mark.parametrize(
    ("job", "hinted"),
    [
        ({"error": {"code": "HTTP_503"}}, "run it again with: fairlead retry 17"),
        ({"error": {"code": "DEADLINE_PASSED"}}, "its deadline has passed, so it cannot be retried; submit it again"),
        ({"error": {"code": "HOLDER_DIED"}, "turn": True}, ""),
    ],
)
def test_a_hint_names_only_what_works(job: dict[str, Any], hinted: str, capsys: pytest.CaptureFixture[str]) -> None:
    hint_next({"job_id": "17", "status": "FAILED", **job})
    assert capsys.readouterr().err.strip() == hinted


@pytest.mark.parametrize(
    ("turn", "code", "hinted"),
    [
        (False, "HTTP_503", "see its attempts with: fairlead get 17; run it again with: fairlead retry 17"),
        (
            False,
            "DEADLINE_PASSED",
            "see its attempts with: fairlead get 17; its deadline has passed, so it cannot be retried; submit it again",
        ),
        (True, "HOLDER_DIED", ""),
    ],
)
def test_the_hint_after_watch_names_only_what_works(
    turn: bool, code: str, hinted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = JobLine()
    line.take(snapshot(job_id="17", status="RUNNING", turn=turn))
    line.take({"type": "JOB_FAILED", "error": {"code": code, "message": "no"}, "message": "no"})
    hint_after(line)
    ended = JobLine()
    ended.take(snapshot(job_id="17", status="FAILED", turn=turn, error={"code": code, "message": "no"}))
    hint_after(ended)
    assert capsys.readouterr().err.splitlines() == [hinted] * 2 * bool(hinted)


def test_durations_are_readable() -> None:
    assert [seconds(value) for value in (0.04, 9.96, 59, 61, 3660)] == [
        "0.0 s",
        "10.0 s",
        "59 s",
        "1 min 1 s",
        "1 h 1 min",
    ]


# ---------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:9001/v1", "http://127.0.0.1:9001/v1"),
        ("https://ada:pw@db.example:5432/x", "https://ada:***@db.example:5432/x"),
        ("https://:pw@db.example/x", "https://:***@db.example/x"),
        ("https://ada@db.example/x", "https://ada@db.example/x"),
        ("https://a.example/v1?token=pw&b=2", "https://a.example/v1?token=***&b=***"),
        ("http://ada:p@w@a.example/", "http://ada:***@a.example/"),
        ("sqlite:///fairlead.db", "sqlite:///fairlead.db"),
        ("sqlite:////var/lib/fairlead.db", "sqlite:////var/lib/fairlead.db"),
        ("sqlite:///f.db?synchronous=normal", "sqlite:///f.db?synchronous=normal"),
        ("http://[::1", "***"),
    ],
)
def test_urls_are_shown_without_credentials(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


# ---------------------------------------------------------------- --wait


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        (["x", "--wait"], ["x", f"--wait={FOREVER}"]),
        (["x", "--wait", "30"], ["x", "--wait", "30"]),
        (["x", "--wait=30"], ["x", "--wait=30"]),
        (["x", "--wait", "1h30m"], ["x", "--wait", "1h30m"]),
        (["x", "--wait", "-1"], ["x", "--wait", "-1"]),
        (["--wait", "x", "{}"], [f"--wait={FOREVER}", "x", "{}"]),
        (["x", "--wait", "--json"], ["x", f"--wait={FOREVER}", "--json"]),
        (["x", "--", "--wait"], ["x", "--", "--wait"]),
    ],
)
def test_wait_needs_no_value(given: list[str], understood: list[str]) -> None:
    assert with_wait_value(given) == understood


# ---------------------------------------------------------------- durations and times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("500ms", 0.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("", None),
        ("5x", None),
        ("h", None),
        ("1h 30m", None),
        ("-5", None),
        ("inf", None),
        ("nan", None),
        ("9" * 400, None),
    ],
)
def test_a_duration_is_seconds_or_has_units(text: str, expected: float | None) -> None:
    assert seconds_in(text) == expected


def test_a_wrong_duration_is_refused_with_examples() -> None:
    with pytest.raises(typer.BadParameter, match=r"'5x' is not a duration; write .*1h30m"):
        duration("5x")


def test_a_duration_in_the_past_is_counted_from_now() -> None:
    before = datetime.now(UTC) - timedelta(hours=1)
    read = datetime.fromisoformat(past("1h"))
    assert before <= read <= datetime.now(UTC) - timedelta(hours=1)


def test_a_deadline_is_a_time_or_the_seconds_until_then() -> None:
    assert future("2h") == 7200
    assert future("2026-12-31T18:00+01:00") == "2026-12-31T18:00:00+01:00"


def test_eight_digits_are_a_date_and_not_seconds() -> None:
    assert past("20260131").startswith("2026-01-31T00:00:00")


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    try:
        assert moment("2026-12-31T18:00") == "2026-12-31T18:00:00+03:00"
        assert moment("2026-12-31T18:00Z") == "2026-12-31T18:00:00+00:00"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["soon", "1x", "2026-13-01", ""])
def test_what_is_neither_a_time_nor_a_duration_is_refused(text: str) -> None:
    for read in (past, future, moment):
        with pytest.raises(typer.BadParameter, match="is not a time"):
            read(text)


# ---------------------------------------------------------------- turn


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        ("--user ada flux draw --json", "--user ada -- flux draw --json"),
        ("flux --user ada -- draw --json", "--user ada -- flux draw --json"),
        ("flux --user ada draw --json", "--user ada -- flux draw --json"),
        ("flux --user=ada --json draw", "--user=ada --json -- flux draw"),
        ("flux draw --user ada", "-- flux draw --user ada"),
        ("flux -- draw -- x", "-- flux draw -- x"),
        ("--user ada -- flux draw", "--user ada -- flux draw"),
        ("-- flux -- draw", "-- flux draw"),
        ("flux -- -c", "-- flux -c"),
        ("flux --help", "--help -- flux"),
        ("--help", "--help"),
        ("flux --user", "--user -- flux"),
        ("", ""),
    ],
)
def test_options_of_a_turn_may_come_before_or_after_the_service(given: str, understood: str) -> None:
    assert options_first(given.split(), {"--user", "--priority"}) == understood.split()


# ---------------------------------------------------------------- tables


def drawn(width: int | None) -> list[str]:
    rows = [("1" * 36, "full_pipeline", "a-long-user-name", "", "medium"), ("2" * 36, "text", "ada", "", "low")]
    shown = table(
        ("ID", "FEATURE", "USER", "POOL", "PRIORITY"),
        rows,
        width=width,
        optional=("PRIORITY",),
        flexible=("FEATURE", "USER"),
    )
    console = Console(width=200)
    with console.capture() as captured:
        console.print(shown)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_pipe_gets_every_column() -> None:
    assert drawn(None)[0].split() == ["ID", "FEATURE", "USER", "POOL", "PRIORITY"]


@pytest.mark.parametrize(
    ("width", "columns"),
    [(83, ["ID", "FEATURE", "USER", "PRIORITY"]), (72, ["ID", "FEATURE", "USER"]), (60, ["ID", "FEATURE", "USER"])],
)
def test_a_table_fits_the_terminal_and_keeps_ids(width: int, columns: list[str]) -> None:
    lines = drawn(width)
    assert lines[0].split() == columns
    assert max(map(len, lines)) <= width
    assert [line[:36] for line in lines[1:]] == ["1" * 36, "2" * 36]


# ---------------------------------------------------------------- names of commands


@pytest.mark.parametrize(("typed", "meant"), [("jobs", "list"), ("ps", "list"), ("statsu", "status"), ("run", "up")])
def test_the_command_that_was_probably_meant_is_suggested(typed: str, meant: str) -> None:
    result = CliRunner().invoke(cli, [typed])
    assert result.exit_code == Exit.USAGE
    assert f"Did you mean '{meant}'?" in result.output


def test_synonyms_are_no_commands_and_lead_to_one() -> None:
    commands = typer.main.get_command(cli).commands  # type: ignore[attr-defined]
    assert SYNONYMS.keys().isdisjoint(commands)
    assert {meant.partition(" ")[0] for meant in SYNONYMS.values()} <= commands.keys()


# ---------------------------------------------------------------- --watch


@pytest.mark.parametrize(
    "failure",
    [Failure("cannot be reached", Exit.NO_CONNECTION), Failure("no database", problem={"status": 503})],
)
def test_a_live_view_survives_what_may_pass(failure: Failure) -> None:
    assert passing(failure).plain == f"trying again: {failure.message}"


@pytest.mark.parametrize("status", [401, 403, 404, 422])
def test_a_live_view_ends_with_a_refusal(status: int) -> None:
    with pytest.raises(Failure):
        passing(Failure("refused", problem={"status": status}))


# ---------------------------------------------------------------- the status line of a job


def snapshot(**job: Any) -> dict[str, Any]:
    steps = ["echo", "paint"]
    return {"type": "SNAPSHOT", "job": {"current_step_index": 0, "total_steps": 2, "steps": steps, **job}}


def test_events_of_other_programs_change_the_text_of_the_status_line_only() -> None:
    line = JobLine()
    line.take(snapshot(status="RUNNING"))
    line.take({"type": "TEST", "message": "hello", "total": "many", "service": 7, "step": [], "position": {}})
    assert line.text().plain == "RUNNING    step 1/2 echo  hello"


def test_the_status_line_follows_the_job_to_its_end() -> None:
    line = JobLine()
    lines: list[tuple[str, float]] = []
    for event in (
        snapshot(status="PENDING", position=3, estimated_wait={"low": 2.0, "high": 8.0}),
        {"type": "POSITION", "position": 1, "estimated_wait": {"low": 0.0, "high": 1.0}},
        {"type": "STEP_START", "service": "echo", "step": 1, "total": 2},
        {"type": "STEP_COMPLETE", "service": "echo", "step": 1, "total": 2, "message": "completed echo (1/2)"},
        {"type": "STEP_START", "service": "paint", "step": 2, "total": 2},
        {"type": "PROGRESS", "service": "paint", "step": 1, "fraction": 0.5, "message": "half"},
        {"type": "JOB_RETRYING", "message": "paint is tried again"},
        {"type": "JOB_COMPLETE", "message": "the job is complete"},
    ):
        line.take(event)
        lines.append((line.text().plain, line.done))
    assert lines == [
        ("PENDING    step 1/2 echo  position 3, in 2.0 s to 8.0 s", 0.0),
        ("PENDING    step 1/2 echo  position 1, in 0.0 s to 1.0 s", 0.0),
        ("RUNNING    step 1/2 echo", 0.0),
        ("RUNNING    completed echo (1/2)", 0.5),
        ("RUNNING    step 2/2 paint", 0.5),
        ("RUNNING    step 2/2 paint  50% half", 0.75),
        ("RETRYING   step 2/2 paint  paint is tried again", 0.75),
        ("COMPLETED", 1.0),
    ]


def test_the_status_line_of_a_failed_job_names_the_error() -> None:
    line = JobLine()
    line.take(snapshot(status="RUNNING"))
    line.take({"type": "JOB_FAILED", "error": {"code": "PERMANENT", "message": "no\x1b way"}, "message": "no way"})
    assert line.text().plain == r"FAILED     no\x1b way (PERMANENT)"


def test_an_unknown_event_is_not_fatal() -> None:
    line = JobLine()
    line.take(snapshot(status="RUNNING"))
    line.take({"type": "SOMETHING_NEW", "message": "new"})
    assert line.status == "RUNNING"


def test_each_status_has_its_exit_code() -> None:
    assert [end_of(status) for status in ("COMPLETED", "FAILED", "CANCELLED", "PENDING")] == [0, 3, 4, 6]


# ---------------------------------------------------------------- listening


def test_loopback_needs_no_key() -> None:
    sockets = listen.bind("127.0.0.1", 0, has_key=False)
    try:
        (port,) = {each.getsockname()[1] for each in sockets}
        assert listen.url_of(sockets[0]) == f"http://127.0.0.1:{port}"
    finally:
        for each in sockets:
            each.close()


async def test_responses_are_sent_at_once_on_any_event_loop() -> None:
    """Without TCP_NODELAY the body of a response waits up to 40 ms for the client to acknowledge its head."""
    (listening,) = listen.bind("127.0.0.1", 0, has_key=False)
    accepted: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(cast(asyncio.Transport, transport))

    server = await asyncio.get_running_loop().create_server(Accepting, sock=listening)
    async with server:
        _, writer = await asyncio.open_connection(*listening.getsockname())
        connection = (await accepted).get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


def test_all_addresses_of_a_name_share_one_port() -> None:
    sockets = listen.bind("localhost", 0, has_key=False)
    try:
        assert len({each.getsockname()[1] for each in sockets}) == 1
    finally:
        for each in sockets:
            each.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_other_hosts_are_refused_without_a_key(host: str) -> None:
    with pytest.raises(Failure, match="FAIRLEAD_ADMIN_KEY") as caught:
        listen.bind(host, 0, has_key=False)
    assert caught.value.code == Exit.USAGE


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(Failure, match=r"cannot listen on 192\.0\.2\.1"):
        listen.bind("192.0.2.1", 0, has_key=True)


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match=f"port {port} .* in use"):
            listen.bind("127.0.0.1", port, has_key=False)


def test_status_shows_the_bounds_of_an_automatic_limit_or_the_operators_limit() -> None:
    auto = {"min": 1, "max": 16, "limit": 5, "history": []}
    assert _override({"paused": False, "override": None, "auto": auto}) == "auto, 1 to 16"
    assert _override({"paused": True, "override": None, "auto": auto}) == "paused, auto, 1 to 16"
    by_hand = {"limit": 3, "paused": None}
    assert _override({"paused": False, "override": by_hand, "auto": auto}) == "limit 3 by an operator"
    assert _override({"paused": False, "override": None, "auto": None}) == ""
