"""Which processes there are: each announces itself in the truth, and hears with the same write whether it is to drain.

Presence   what this process says of itself, as a loop
Bystander  runs that loop in a gateway that has no line, because another process dispatches from its memory
Registry   what operators ask: who is there; drain this one
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from uuid_utils import uuid4

from fairlead.domain.config import Config
from fairlead.domain.job import Priority
from fairlead.domain.processes import POOLS, ProcessRecord
from fairlead.errors import NotFound, Unavailable, WrongState
from fairlead.runtime import audit, kin
from fairlead.runtime.audit import Act, AuditBook
from fairlead.runtime.clock import Clock
from fairlead.runtime.manager import Manager
from fairlead.runtime.pools import pools_of
from fairlead.runtime.roles import Roles
from fairlead.store.journal import Journal
from fairlead.store.port import Announce, AskDrain, Done, Farewell, Store
from fairlead.version import __version__

EVERY = 2.0
FAREWELL_WITHIN = 1.0


def new_name() -> str:
    """Of a process, of its leases and of its claim to lead. A container's process is number 1, and so may be its
    neighbour's: the name must be one's own."""
    return f"{socket.gethostname()}:{os.getpid()}:{str(uuid4())[:8]}"


def introduction(name: str, roles: Roles, config: Config, services: Iterable[str], now: float) -> ProcessRecord:
    """What does not change about a process while it runs. `services` are those that its worker can execute. Of several
    workers it says what they claim together, and what each of them does in the details."""
    pools = pools_of(roles, config)
    bands = sorted(frozenset().union(*(pool.bands for pool in pools)))
    details = kin.marks()
    if any(pool.name or pool.regions for pool in pools):
        details[POOLS] = [pool.told(services) for pool in pools]
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
    """How a process is at this moment."""

    draining: bool = False
    running: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)


class Presence:
    """A loop. `heard` is told with each announcement whether this process is to drain."""

    name = "presence"

    def __init__(
        self,
        about: ProcessRecord,
        journal: Journal,
        clock: Clock,
        *,
        condition: Callable[[], Condition] = Condition,
        heard: Callable[[bool], None] = lambda drain: None,
    ) -> None:
        self._about = about
        self._journal = journal
        self._clock = clock
        self._condition = condition
        self._heard = heard

    async def tick(self, now: float) -> float:
        await self.announce()
        return now + EVERY

    async def announce(self) -> None:
        # A store that is away is no news from here: whoever cannot work without it says so. We are in the list again
        # when it is back.
        with contextlib.suppress(Unavailable):
            now = self._condition()
            record = replace(
                self._about,
                clock=self._clock.now(),
                draining=now.draining,
                running=now.running,
                details={**self._about.details, **now.details},
            )
            outcome = await self._journal.write(Announce(record))
            if isinstance(outcome, Done):
                self._heard(bool(outcome.value))

    async def farewell(self) -> None:
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(FAREWELL_WITHIN):
                await self._journal.write(Farewell(self._about.name))


class Bystander:
    def __init__(self, presence: Presence, clock: Clock) -> None:
        self._presence = presence
        self._loops = Manager([presence], clock)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._presence.announce()
        self._task = asyncio.get_running_loop().create_task(self._loops.run(), name="fairlead-bystander")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._presence.farewell()


class Registry:
    def __init__(self, store: Store, book: AuditBook) -> None:
        self._store = store
        self._book = book

    async def drain(self, name: str, *, on: bool, who: str) -> ProcessRecord:
        """Ask a worker to claim no more, or to claim again. It hears of it within two seconds."""
        found = {record.name: record for record in await self._store.processes()}
        if name not in found:
            raise _no_process(name)
        record = found[name]
        if "worker" not in record.roles:
            raise WrongState(f"{name} runs no worker: there is nothing to drain")
        if not record.alive(await self._store.now()):
            raise WrongState(f"{name} is gone: it has not announced itself for a while")
        act = Act(who, audit.DRAIN if on else audit.UNDRAIN, name)
        (outcome,) = await self._book.write(act, AskDrain(name, on))
        if not isinstance(outcome, Done):
            raise _no_process(name)
        return replace(record, drain_asked=on)


def _no_process(name: str) -> NotFound:
    return NotFound(f"there is no process {name[:100]!r}")
