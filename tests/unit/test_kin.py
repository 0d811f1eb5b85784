"""Whether a process of the same machine is gone: only what is certain counts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from fairlead.domain.processes import ProcessRecord
from fairlead.runtime import kin

pytestmark = pytest.mark.skipif(not kin.marks(), reason="this system has no /proc: there is nothing to look at")


def record(pid: int, **details: object) -> ProcessRecord:
    own = {**kin.marks(), "began": kin._began(pid)}
    return ProcessRecord("w", ("worker",), (), (), 1, "host", pid, "0", 0.0, details={**own, **details})


def test_who_lives_is_not_gone() -> None:
    assert not kin.is_gone(record(os.getpid()), kin.marks())


def test_who_was_killed_is_gone_before_and_after_its_parent_has_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = record(child.pid)
    assert not kin.is_gone(told, kin.marks())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried
    assert kin.is_gone(told, kin.marks())
    child.communicate()
    assert kin.is_gone(told, kin.marks())


def test_a_number_that_was_given_to_another_is_not_the_same_process() -> None:
    assert kin.is_gone(record(os.getpid(), began=1), kin.marks())


@pytest.mark.parametrize("unknown", [{"machine": "another/1"}, {"machine": None}])
def test_of_another_machine_nothing_is_certain(unknown: dict[str, object]) -> None:
    assert not kin.is_gone(replace(record(os.getpid(), began=1, **unknown)), kin.marks())
    assert not kin.is_gone(record(os.getpid(), began=1), {})
