"""Whether a process of the same machine is dead: only certain facts count."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from fairlead.domain.processes import ProcessRecord
from fairlead.engine import registry

pytestmark = pytest.mark.skipif(
    not registry.machine_marks(), reason="this system has no /proc: there is nothing to look at"
)


def record(pid: int, **details: object) -> ProcessRecord:
    own = {**registry.machine_marks(), "began": registry._began(pid)}
    return ProcessRecord("w", ("worker",), (), (), 1, "host", pid, "0", 0.0, details={**own, **details})


def test_a_live_process_is_not_gone() -> None:
    assert not registry.is_gone(record(os.getpid()), registry.machine_marks())


def test_a_killed_process_is_gone_before_and_after_its_parent_reaps_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child_record = record(child.pid)
    assert not registry.is_gone(child_record, registry.machine_marks())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert registry.is_gone(child_record, registry.machine_marks())
    child.communicate()
    assert registry.is_gone(child_record, registry.machine_marks())


def test_a_reused_pid_is_not_the_same_process() -> None:
    assert registry.is_gone(record(os.getpid(), began=1), registry.machine_marks())


@pytest.mark.parametrize("unknown", [{"machine": "another/1"}, {"machine": None}])
def test_a_process_of_another_machine_is_never_certainly_gone(unknown: dict[str, object]) -> None:
    assert not registry.is_gone(replace(record(os.getpid(), began=1, **unknown)), registry.machine_marks())
    assert not registry.is_gone(record(os.getpid(), began=1), {})
