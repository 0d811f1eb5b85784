"""What can be asked about turns, wherever their callers are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fairlead.domain.config import Config
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.limits import BANDS, Lanes
from fairlead.domain.order import Place
from fairlead.errors import NotFound
from fairlead.runtime.operations import check_id
from fairlead.runtime.process import Process
from fairlead.runtime.turns.tickets import Tickets
from fairlead.runtime.turns.view import TurnView, of_record, of_turn
from fairlead.store.port import Store

LOOK_AT = 1000


class Looking:
    """`process` gives what this process has of the line, and starts it if need be."""

    def __init__(
        self,
        store: Store,
        *,
        config: Callable[[], Config],
        tickets: Tickets,
        process: Callable[[], Awaitable[Process]],
    ) -> None:
        self._store = store
        self._config = config
        self._tickets = tickets
        self._running = process

    async def get(self, turn_id: str) -> TurnView:
        """The whole turn, and where it stands."""
        record = await self._store.get(check_id(turn_id, "turn"))
        if record is None or record.job.turn is None:
            raise NotFound(f"there is no turn {turn_id}")
        place = await self._place(record.job)
        ttl, timeout = self._times(record.job.service)
        return of_record(record, place, lease_ttl=ttl, timeout=timeout)

    async def find(self, turn_id: str) -> Job | None:
        """Its row; None if there is no such turn."""
        job = (await self._store.get_jobs([turn_id])).get(turn_id)
        return None if job is None or job.turn is None else job

    async def position(self, turn_id: str) -> int | None:
        """1 is next. None: it does not wait, or is not there."""
        job = (await self._store.get_jobs([check_id(turn_id, "turn")])).get(turn_id)
        place = None if job is None else await self._place(job)
        return None if place is None else place.position

    async def first(self, service: str) -> str | None:
        """Of the turns in this service's line the one that is next. Looks at all of the line."""
        process = await self._running()
        await process.told(service)
        lanes = Lanes(frozenset((service, band) for band in BANDS), others=False)
        found: dict[str, int] = {}
        async for jobs in self._store.waiting(LOOK_AT, lanes):
            places = await process.places([job.id for job in jobs if job.turn is not None])
            found |= {turn_id: place.position for turn_id, place in places.items()}
        return min(found, key=lambda turn_id: found[turn_id], default=None)

    async def owner_of(self, turn_id: str) -> str | None:
        """Whose turn it is. None: there is no such turn."""
        job = (await self._store.get_jobs([check_id(turn_id, "turn")])).get(turn_id)
        return None if job is None or job.turn is None else job.user_id

    def held_here(self, turn_id: str) -> bool:
        """Whether the caller that has this slot is in this process, and still has it."""
        ticket = self._tickets.get(turn_id)
        return ticket is not None and ticket.held

    def owned_here(self, turn_id: str) -> bool:
        """Whether its caller, waiting or holding, is in this process."""
        return self._tickets.get(turn_id) is not None

    async def _turn(self, turn_id: str) -> Job:
        job = (await self._store.get_jobs([check_id(turn_id, "turn")])).get(turn_id)
        if job is None or job.turn is None:
            raise NotFound(f"there is no turn {turn_id}")
        return job

    async def _place(self, job: Job) -> Place | None:
        if job.status is not JobStatus.PENDING:
            return None
        process = await self._running()
        await process.told(job.service)
        return (await process.places([job.id])).get(job.id)

    def _view(self, job: Job, place: Place | None) -> TurnView:
        ttl, timeout = self._times(job.service)
        return of_turn(job, place, lease_ttl=ttl, timeout=timeout)

    def _times(self, service: str) -> tuple[float, float]:
        config = self._config().services.get(service)
        return (15.0, 300.0) if config is None else (config.lease_ttl, config.timeout)
