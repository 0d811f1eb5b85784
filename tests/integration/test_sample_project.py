"""The sample project of `make run`: 13 users at once, and the services' own counts."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.cli_process import DEADLINE_S, Up, started

RUN = Path(__file__).parents[2] / "examples" / "cao" / "run.py"
LIMITS = {"prompt_enhancer": 5, "fast_chat_llm": 4, "image_gen": 1, "model_3d_gen": 1}
USERS = 13
SCALE = "0.05"
LONGEST_WAIT_S = 30


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[Up]:
    port = free_port()
    env = {"PORT": str(port), "SCALE": SCALE, "DATABASE_URL": f"sqlite:///{tmp_path / 'sample.db'}"}
    with started((sys.executable, str(RUN)), cwd=tmp_path, env=env) as running:
        running.url = f"http://127.0.0.1:{port}"
        try:
            running.wait_for("Ctrl-C stops everything")
            yield running
        finally:
            # Its child has its own session: only a signal, never a kill, ends both.
            if running.process.poll() is None:
                running.signal(signal.SIGTERM)
                running.ended()


def stats_urls(sample: Up) -> dict[str, str]:
    return dict(re.findall(r"^  (\w+)\s+(http\S+/stats)$", "".join(sample.output), re.M))


def mix() -> list[dict[str, Any]]:
    """Each user submits pipelines of one kind and priority, and a few short ones."""
    priorities = ("high", "medium", "low")
    return [
        {
            "user_id": f"user-{number}",
            "feature_name": feature,
            "input_data": {"prompt": f"a ship for user {number}"},
            "priority": priorities[number % 3],
        }
        for number in range(USERS)
        for feature in ["full_pipeline"] * (1 + number % 2) + ["text_only"] * (1 + number % 3)
    ]


def test_limits_hold_as_the_services_count_them_and_every_job_completes(sample: Up) -> None:
    jobs = mix()
    with httpx2.Client(base_url=sample.url, trust_env=False, timeout=DEADLINE_S) as client:
        answer = client.post("/api/v1/jobs/bulk", json={"jobs": jobs}).raise_for_status()
        ids = [receipt["job_id"] for receipt in answer.json()["jobs"]]
        assert len(ids) == len(jobs)
        ended = [_ended(client, job_id) for job_id in ids]
        stats = {name: client.get(url).json() for name, url in stats_urls(sample).items()}

    assert {job["status"] for job in ended} == {"COMPLETED"}
    assert {name: each["limit"] for name, each in stats.items()} == LIMITS
    assert {name: each["violations"] for name, each in stats.items()} == dict.fromkeys(LIMITS, 0)
    # Exactly the limit: with so many waiting, every slot must have been used.
    assert {name: each["highest_in_flight"] for name, each in stats.items()} == LIMITS
    full = sum(job["feature_name"] == "full_pipeline" for job in jobs)
    calls = {"prompt_enhancer": len(jobs), "fast_chat_llm": len(jobs), "image_gen": full, "model_3d_gen": full}
    assert {name: each["completed"] for name, each in stats.items()} == calls


def _ended(client: httpx2.Client, job_id: str) -> dict[str, Any]:
    """The stream of events ends with the job."""
    with client.stream("GET", f"/api/v1/jobs/{job_id}/events", timeout=LONGEST_WAIT_S) as stream:
        for _ in stream.iter_lines():
            pass
    return dict(client.get(f"/api/v1/jobs/{job_id}").json())


def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with started((sys.executable, str(RUN)), cwd=tmp_path, env={"PORT": port}) as running:
            running.wait_for(f"port {port} is in use")
            assert running.ended() == 1
            assert f"PORT={port} make run" not in "".join(running.output)


def test_it_prints_what_the_command_line_needs(sample: Up) -> None:
    (line,) = re.findall(r"^  export (FAIRLEAD_URL=\S+)$", "".join(sample.output), re.M)
    assert line == f"FAIRLEAD_URL={sample.url}"


def test_ctrl_c_stops_everything(sample: Up) -> None:
    gateway = httpx2.get(f"{sample.url}/readyz", trust_env=False)
    assert gateway.status_code == 200
    os.kill(sample.process.pid, signal.SIGINT)
    assert sample.ended() == 0
    output = "".join(sample.output)
    assert "SIGINT: draining" in output
    assert "/readyz" not in output, "its own probes are not logged"
    for url in (sample.url, *stats_urls(sample).values()):
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(url, trust_env=False)
