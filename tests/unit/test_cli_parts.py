"""The command line's small parts, without a process or a gateway."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, cast

import pytest

from fairlead.cli import listen
from fairlead.cli.failure import Exit, Failure
from fairlead.cli.follow import JobLine, end_of
from fairlead.cli.logs import OneLine
from fairlead.cli.output import clean, safe, seconds
from fairlead.cli.redact import without_secrets
from fairlead.cli.status import _override
from fairlead.cli.submit import FOREVER, with_wait_value

# ---------------------------------------------------------------- output


@pytest.mark.parametrize(
    ("said", "shown"),
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
def test_what_cannot_be_seen_is_shown_as_its_escape(said: str, shown: str) -> None:
    assert clean(said) == shown


def test_markup_is_only_text() -> None:
    assert safe("[bold]x[/bold]").plain == "[bold]x[/bold]"
    assert safe("[bold]x[/bold]").spans == []


def test_a_log_line_stays_one_line() -> None:
    record = logging.LogRecord("n", logging.INFO, "p", 1, "job said %s", ("a\n2026 CRITICAL forged\x1b[0m",), None)
    line = OneLine("%(levelname)s %(message)s").format(record)
    assert line == r"INFO job said a\n2026 CRITICAL forged\x1b[0m"


def test_seconds_read_well() -> None:
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
def test_urls_are_shown_without_what_opens_them(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


# ---------------------------------------------------------------- --wait


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        (["x", "--wait"], ["x", f"--wait={FOREVER}"]),
        (["x", "--wait", "30"], ["x", "--wait", "30"]),
        (["x", "--wait=30"], ["x", "--wait=30"]),
        (["--wait", "x", "{}"], [f"--wait={FOREVER}", "x", "{}"]),
        (["x", "--wait", "--json"], ["x", f"--wait={FOREVER}", "--json"]),
        (["x", "--", "--wait"], ["x", "--", "--wait"]),
    ],
)
def test_wait_may_stand_alone(given: list[str], understood: list[str]) -> None:
    assert with_wait_value(given) == understood


# ---------------------------------------------------------------- the live line


def snapshot(**job: Any) -> dict[str, Any]:
    steps = ["echo", "paint"]
    return {"type": "SNAPSHOT", "job": {"current_step_index": 0, "total_steps": 2, "steps": steps, **job}}


def test_the_live_line_tells_the_whole_way() -> None:
    line = JobLine()
    said: list[tuple[str, float]] = []
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
        said.append((line.text().plain, line.done))
    assert said == [
        ("PENDING    step 1/2 echo  position 3, in 2.0 s to 8.0 s", 0.0),
        ("PENDING    step 1/2 echo  position 1, in 0.0 s to 1.0 s", 0.0),
        ("RUNNING    step 1/2 echo", 0.0),
        ("RUNNING    completed echo (1/2)", 0.5),
        ("RUNNING    step 2/2 paint", 0.5),
        ("RUNNING    step 2/2 paint  50% half", 0.75),
        ("RETRYING   step 2/2 paint  paint is tried again", 0.75),
        ("COMPLETED", 1.0),
    ]


def test_the_live_line_of_a_failed_job_says_why() -> None:
    line = JobLine()
    line.take(snapshot(status="RUNNING"))
    line.take({"type": "JOB_FAILED", "error": {"code": "PERMANENT", "message": "no\x1b way"}, "message": "no way"})
    assert line.text().plain == r"FAILED     no\x1b way (PERMANENT)"


def test_an_event_of_a_later_version_is_not_fatal() -> None:
    line = JobLine()
    line.take(snapshot(status="RUNNING"))
    line.take({"type": "SOMETHING_NEW", "message": "new"})
    assert line.status == "RUNNING"


def test_statuses_end_with_their_codes() -> None:
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


async def test_answers_are_sent_at_once_on_any_event_loop() -> None:
    """Without TCP_NODELAY an answer's body waits up to 40 ms for the client to acknowledge its head."""
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


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(Failure, match=r"cannot listen on 192\.0\.2\.1"):
        listen.bind("192.0.2.1", 0, has_key=True)


def test_a_busy_port_is_told_by_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Failure, match=f"port {port} .* in use"):
            listen.bind("127.0.0.1", port, has_key=False)


def test_status_tells_the_bounds_of_a_limit_that_is_found_by_itself_and_an_operators_in_their_place() -> None:
    auto = {"min": 1, "max": 16, "limit": 5, "history": []}
    assert _override({"paused": False, "override": None, "auto": auto}) == "auto, 1 to 16"
    assert _override({"paused": True, "override": None, "auto": auto}) == "paused, auto, 1 to 16"
    by_hand = {"limit": 3, "paused": None}
    assert _override({"paused": False, "override": by_hand, "auto": auto}) == "limit 3 by an operator"
    assert _override({"paused": False, "override": None, "auto": None}) == ""
