"""CPU time by part: the servers, the workers, and the processes beside them."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def seconds_of(pids: set[int], *, by_session: bool = False) -> float:
    """CPU seconds of these processes and their descendants, dead or alive, or (`by_session`) of all processes in their
    sessions."""
    children: dict[int, list[int]] = defaultdict(list)
    spent: dict[int, float] = {}
    total = 0.0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # the process has just ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            pid, parent, session = int(folder.name), int(fields[1]), int(fields[3])
            children[parent].append(pid)
            spent[pid] = sum(map(int, fields[11:15])) / _TICK
            if by_session and session in pids:
                total += sum(map(int, fields[11:13])) / _TICK
    if by_session:
        return total
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        total += spent.get(pid, 0.0)
        waiting += children[pid]
    return total
