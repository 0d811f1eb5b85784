"""Reads turns. Their callers may be connected to any process."""

from __future__ import annotations

from fairlead.app.runtime import Runtime
from fairlead.domain.fair_share import QueuePosition
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.rules import BANDS, Lanes
from fairlead.domain.turns import TurnView, turn_view_of, turn_view_of_record
from fairlead.domain.validation import check_id
from fairlead.errors import NotFound

PAGE = 1000


class TurnQueries:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def get(self, turn_id: str) -> TurnView:
        """The turn with its result and queue position. Raises NotFound."""
        record = await self._runtime.store.get(check_id(turn_id, "turn"))
        if record is None or record.job.turn is None:
            raise _not_found(turn_id)
        position = await self._position(record.job)
        ttl, timeout = self._times(record.job.service)
        return turn_view_of_record(record, position, lease_ttl=ttl, timeout=timeout)

    async def find(self, turn_id: str) -> Job | None:
        """The row of the turn; None if there is no such turn."""
        job = (await self._runtime.store.get_jobs([turn_id])).get(turn_id)
        return None if job is None or job.turn is None else job

    async def require(self, turn_id: str) -> Job:
        """The row of the turn. Raises NotFound if there is no such turn."""
        job = await self.find(check_id(turn_id, "turn"))
        if job is None:
            raise _not_found(turn_id)
        return job

    async def owner_of(self, turn_id: str) -> str | None:
        """The user_id of the turn; None if there is no such turn."""
        job = await self.find(check_id(turn_id, "turn"))
        return None if job is None else job.user_id

    async def position(self, turn_id: str) -> int | None:
        """The turn's queue position; 1 is next. None if it does not wait or does not exist."""
        job = (await self._runtime.store.get_jobs([check_id(turn_id, "turn")])).get(turn_id)
        position = None if job is None else await self._position(job)
        return None if position is None else position.position

    async def first(self, service: str) -> str | None:
        """The id of the first turn in the service's queue. Reads the whole queue."""
        node = await self._runtime.join()
        await node.relayed(service)
        lanes = Lanes(frozenset((service, band) for band in BANDS), others=False)
        positions: dict[str, int] = {}
        async for jobs in self._runtime.store.waiting(PAGE, lanes):
            page = await node.positions_of([job for job in jobs if job.turn is not None])
            positions |= {turn_id: position.position for turn_id, position in page.items()}
        return min(positions, key=positions.__getitem__, default=None)

    def held_here(self, turn_id: str) -> bool:
        """Whether a caller in this process holds the turn's slot."""
        waiter = self._runtime.waiters.get(turn_id)
        return waiter is not None and waiter.held

    def owned_here(self, turn_id: str) -> bool:
        """Whether the caller of the turn, who waits or holds the slot, is connected to this process."""
        return self._runtime.waiters.get(turn_id) is not None

    def view(self, job: Job) -> TurnView:
        """Make the view of a turn from its row, without result and queue position. Does not read the store."""
        ttl, timeout = self._times(job.service)
        return turn_view_of(job, None, lease_ttl=ttl, timeout=timeout)

    async def _position(self, job: Job) -> QueuePosition | None:
        if job.status is not JobStatus.PENDING:
            return None
        node = await self._runtime.join()
        await node.relayed(job.service)
        return (await node.positions_of([job])).get(job.id)

    def _times(self, service: str) -> tuple[float, float]:
        """The lease TTL and the call timeout of the service, in seconds. These are the defaults if the service is not
        configured in this process."""
        config = self._runtime.config.services.get(service)
        return (15.0, 300.0) if config is None else (config.lease_ttl, config.timeout)


def _not_found(turn_id: str) -> NotFound:
    return NotFound(f"there is no turn {turn_id}")
