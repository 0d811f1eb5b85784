"""The registration of this process in the database, and the detection of other processes on this machine that are gone.

Announcer           the loop that renews the registration; the renewal also reads whether an operator asks to drain
GatewayOnlyNode     runs only that loop: for a gateway, while another process dispatches from its own memory
DeadNeighboursLoop  marks killed processes on this machine as gone, so that recovery need not wait for their leases

A killed process cannot deregister, so recovery would have to wait until its leases expire. Another process with the
same kernel and pid namespace detects its death earlier: the pid is free, or belongs to a process that started later.
Across machines or pid namespaces this cannot be checked, and leases have to expire.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from uuid_utils import uuid4

from fairlead.domain.config import Config
from fairlead.domain.job import Priority
from fairlead.domain.processes import GONE, POOLS, ProcessRecord
from fairlead.engine.clock import DatabaseClock
from fairlead.engine.lifecycle import stopped
from fairlead.engine.loop_runner import LoopRunner
from fairlead.engine.roles import Roles, pools_of
from fairlead.errors import Unavailable
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import DeregisterProcess, Done, RegisterProcess, Store
from fairlead.version import __version__

EVERY = 2.0
DEREGISTER_WITHIN = 1.0
_PROC = Path("/proc")
_ENDED = ("Z", "X")
log = logging.getLogger("fairlead.liveness")

NEIGHBOURS_EVERY = 1.0


def new_name() -> str:
    """Make a unique name for this process. Its leases and its leadership are held under this name. Host and pid are not
    enough: in a container the pid is always 1."""
    return f"{socket.gethostname()}:{os.getpid()}:{str(uuid4())[:8]}"


def describe_process(name: str, roles: Roles, config: Config, services: Iterable[str], now: float) -> ProcessRecord:
    """The part of this process's registration that does not change. `services` are the services that its workers can
    execute. If a worker has a named pool or is bound to regions, the details describe each worker."""
    pools = pools_of(roles, config)
    bands = sorted(frozenset().union(*(pool.bands for pool in pools)))
    details = machine_marks()
    if any(pool.name or pool.regions for pool in pools):
        details[POOLS] = [pool.describe(services) for pool in pools]
    return ProcessRecord(
        name=name,
        roles=tuple(role for role in ("api", "worker", "manager") if getattr(roles, role)),
        services=tuple(sorted(services)) if roles.worker else (),
        bands=tuple(Priority.of_band(band).value for band in bands),
        concurrency=sum(pool.concurrency for pool in pools),
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        started_at=now,
        details=details,
    )


@dataclass(frozen=True, slots=True)
class Condition:
    """The part of a process's registration that changes."""

    draining: bool = False
    running: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


class Announcer:
    """Keeps the registration of this process up to date. After each renewal it calls `drain_requested`, with True if an
    operator has asked this process to drain."""

    name = "presence"

    def __init__(
        self,
        record: ProcessRecord,
        group_commit: GroupCommit,
        clock: DatabaseClock,
        *,
        condition: Callable[[], Condition] = Condition,
        drain_requested: Callable[[bool], None] = lambda drain: None,
    ) -> None:
        self._record = record
        self._group_commit = group_commit
        self._clock = clock
        self._condition = condition
        self._drain_requested = drain_requested

    async def tick(self, now: float) -> float:
        await self.announce()
        return now + EVERY

    async def announce(self) -> None:
        # An unreachable store is not logged here, because other parts log it. The next successful renewal registers the
        # process again.
        with contextlib.suppress(Unavailable):
            condition = self._condition()
            record = replace(
                self._record,
                clock=self._clock.machine(),
                draining=condition.draining,
                running=condition.running,
                details={**self._record.details, **condition.details},
            )
            outcome = await self._group_commit.write(RegisterProcess(record))
            if isinstance(outcome, Done):
                self._drain_requested(bool(outcome.value))

    async def deregister(self) -> None:
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(DEREGISTER_WITHIN):
                await self._group_commit.write(DeregisterProcess(self._record.name))


class GatewayOnlyNode:
    def __init__(self, announcer: Announcer, clock: DatabaseClock) -> None:
        self._announcer = announcer
        self._loops = LoopRunner([announcer], clock)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._announcer.announce()
        self._task = asyncio.get_running_loop().create_task(self._loops.run(), name="fairlead-announcer")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await stopped([self._task])
        await self._announcer.deregister()


def machine_marks() -> dict[str, Any]:
    """Values by which other processes on this machine can check whether this process is alive. Empty if these values
    cannot be determined."""
    machine, began = _machine(), _began(os.getpid())
    return {} if machine is None or began is None else {"machine": machine, "began": began}


def is_gone(record: ProcessRecord, own: Mapping[str, Any]) -> bool:
    """Whether the process of this registration is certainly gone. `own` are the `machine_marks` of this process.
    Returns False for processes on other machines, which cannot be checked."""
    there = record.details
    if not own or there.get("machine") != own["machine"] or "began" not in there:
        return False
    return bool(_began(record.pid) != there["began"])


def _machine() -> str | None:
    """A string that identifies the boot of this kernel and the pid namespace; None if it cannot be read."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return None


def _began(pid: int) -> int | None:
    """The time at which the process with this pid started, in ticks since boot; None if no such process is alive."""
    try:
        text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name, in parentheses, may contain anything. After it, the state is the first field and the start time the
    # 20th.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _ENDED else int(fields[19])


class DeadNeighboursLoop:
    name = "kin"

    def __init__(self, store: Store, group_commit: GroupCommit, marks: Mapping[str, Any]) -> None:
        self._store = store
        self._group_commit = group_commit
        self._marks = marks

    async def tick(self, now: float) -> float:
        for record in await self._store.processes():
            if not record.gone and is_gone(record, self._marks):
                log.warning("%s is gone without deregistering; its calls are taken back", record.name)
                await self._group_commit.write(RegisterProcess(replace(record, details={**record.details, GONE: True})))
        return now + NEIGHBOURS_EVERY
