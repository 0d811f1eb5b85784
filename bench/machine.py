"""Describes the machine of the measurement."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
from typing import Any

from bench.servers import POSTGRES, Servers
from bench.systems import ROOT


def facts(servers: Servers) -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "commit": _commit(),
        "versions": servers.versions() | {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version},
        "postgres": ", ".join(("fsync=on", "synchronous_commit=on", *POSTGRES)),
    }


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if not done.stdout:
        return "unknown"
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "src", "bench", ":!bench/*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() + (" with changes" if changed.stdout else "")
