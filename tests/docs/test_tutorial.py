"""The tutorial works as written."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests import redis_servers
from tests.docs.walkthrough import ROOT, Walkthrough, environment_of


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_step_of_the_tutorial_works(tmp_path: Path, database: str) -> None:
    redis_url = redis_servers.server_url()
    redis_servers.empty(redis_url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    replaced = {
        "127.0.0.1:8000": f"127.0.0.1:{port}",
        "postgresql://fairlead@db.example/fairlead": database,
        "redis://redis.example:6379/0": redis_url,
    }
    with Walkthrough(tmp_path, environment_of(port), replaced) as reader:
        assert reader.follow(ROOT / "docs" / "tutorial.md") > 20
