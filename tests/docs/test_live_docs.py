"""docs/live.md matches the events, close codes and limits of the code, and its Python example runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.gateway_site import open_site, served

from fairlead.app import event_stream
from fairlead.app.jobs import MOST_IN_A_SNAPSHOT
from fairlead.domain import events
from fairlead.domain.events import ENDED, MISSED
from fairlead.engine import positions
from fairlead.engine.events import BUFFER, MOST_FOLLOWED
from fairlead.gateway import websocket_protocol, websockets

TEXT = (Path(__file__).parents[2] / "docs" / "live.md").read_text(encoding="utf-8")
INTERNAL = {ENDED, MISSED}


def test_every_event_is_documented() -> None:
    known = {value for name, value in vars(events).items() if name.isupper() and value == name} - INTERNAL
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", TEXT, re.M))
    assert documented == known
    assert {f"`{websockets.HEARTBEAT}`", f"`{event_stream.ERROR}`"} <= set(re.findall(r"`[A-Z]+`", TEXT))


@pytest.mark.parametrize(
    "code",
    [websockets.ENDED, websockets.REFUSED, websockets.RESTARTING, websockets.LATER, websockets.GONE],
)
def test_every_code_that_a_socket_is_closed_with_is_documented(code: int) -> None:
    assert f"\n| {code} | " in TEXT


@pytest.mark.parametrize(
    "text",
    [
        f"| events that wait for one reader | {BUFFER};",
        f"| a send that does not finish | {websockets.SEND_WITHIN_S:g} seconds;",
        f"{websocket_protocol.BUFFER // 1024} KiB in the gateway, "
        f"{websocket_protocol.KERNEL_BUFFER // 1024} KiB in the kernel",
        f"| frames of clients | {websocket_protocol.MAX_FRAME // 1024} KiB",
        f"after {websockets.HEARTBEAT_S:g} seconds without news",
        f"every {websocket_protocol.PING_EVERY_S:g} seconds",
        f"the newest {MOST_IN_A_SNAPSHOT} at most",
        f"up to {MOST_FOLLOWED} open jobs",
        f"up to {event_stream.MOST_WATCHED} at a",
        f"{positions.MOST_A_SECOND:,} of them a second",
    ],
)
def test_the_limits_are_those_of_the_code(text: str) -> None:
    assert text in TEXT


def test_the_interval_of_the_database_check_is_documented() -> None:
    assert event_stream.POLL_EVERY == 5
    assert "every five seconds" in TEXT


@pytest.mark.parametrize("example", re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
def test_every_example_is_json(example: str) -> None:
    orjson.loads(example)


async def test_the_example_in_python_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    defined: dict[str, Any] = {}
    exec(example, defined)
    async with open_site(tmp_path / "jobs.db") as site, served(site.gateway) as port:
        job_id = await site.submit()
        last = await defined["follow"](f"ws://127.0.0.1:{port}/ws/{job_id}")
    assert (last["type"], last["job_id"]) == ("JOB_COMPLETE", job_id)
    assert capsys.readouterr().out.startswith("SNAPSHOT ")
