"""An accepted job is durable: a process killed at any instant loses no job that it acknowledged."""

from __future__ import annotations

import os
import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.store.sqlite.store import COPY_AFTER
from tests.integration.cli_fork import ROOT, Forked

ROUNDS = 15


@pytest.mark.parametrize("copy_after", [COPY_AFTER, 1], ids=["", "while-the-log-is-copied"])
def test_a_killed_process_loses_no_acknowledged_job(tmp_path: Path, copy_after: int) -> None:
    path = tmp_path / "fairlead.db"
    chance = random.Random(20240501)
    acknowledged: set[str] = set()
    for number in range(ROUNDS):
        acknowledged |= acknowledged_until_killed(path, number, chance.randint(1, 400), copy_after)
        with closing(sqlite3.connect(path)) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            stored = {row[0] for row in raw.execute("SELECT id FROM job JOIN job_input USING (seq)")}
            in_line = {row[0] for row in raw.execute("SELECT job_id FROM outbox")}
        assert acknowledged <= stored
        assert stored == in_line
    assert len(acknowledged) >= ROUNDS


def acknowledged_until_killed(path: Path, number: int, after: int, copy_after: int) -> set[str]:
    """The kill happens after a number of acknowledgements and not after a time, so the process is always busy."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as said:
        with os.fdopen(theirs, "wb") as out:
            arguments = ("-m", "tests.crash.sqlite_process", str(path), str(number), str(copy_after))
            process = Forked(arguments, cwd=ROOT, env=os.environ, stdout=out, stderr=sys.__stderr__)
        lines = [said.readline() for _ in range(after)]
        process.kill()
        lines += said.readlines()
    # The last line may be incomplete.
    return {line.rstrip("\n") for line in lines if line.endswith("\n")}
