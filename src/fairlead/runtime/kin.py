"""Processes of the same machine: whether one of them is gone can be seen at once, and for certain.

A process that was killed says nothing, and its leases would be waited for. But whoever shares its kernel and its
process numbers can look: the number is free, or somebody else's who began later. Between machines, or containers with
process numbers of their own, nobody can tell from here, and silence is all there is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.domain.processes import ProcessRecord

_PROC = Path("/proc")
_ENDED = ("Z", "X")


def marks() -> dict[str, Any]:
    """What this process says of itself so that others of its machine can look for it; nothing where that is unknown."""
    machine, began = _machine(), _began(os.getpid())
    return {} if machine is None or began is None else {"machine": machine, "began": began}


def is_gone(record: ProcessRecord, own: Mapping[str, Any]) -> bool:
    """For certain. `own` are this process's marks; of another machine's process nothing is certain."""
    there = record.details
    if not own or there.get("machine") != own["machine"] or "began" not in there:
        return False
    return bool(_began(record.pid) != there["began"])


def _machine() -> str | None:
    """This run of this kernel, and the namespace that process numbers are of."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return None


def _began(pid: int) -> int | None:
    """When the process of this number began, in ticks since the kernel did; None if there is none that lives."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name, in parentheses, may hold anything; what follows is fixed: the state first, the beginning twentieth.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _ENDED else int(fields[19])
