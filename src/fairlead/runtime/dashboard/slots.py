"""The slots of services: who has them, and with which job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.dispatch.port import Lease, ServiceSnapshot
from fairlead.store.port import Store

SHOWN = 64
REMEMBERED = 10_000


class Bearers:
    """What a lease does not say of its job: what it is of, and how many steps it has. That never changes, so each is
    looked up once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[str, int]] = {}

    async def learn(self, leases: Iterable[Lease]) -> None:
        wanted = {lease.job_id for lease in leases}
        missing = wanted - self._known.keys()
        if len(self._known) + len(missing) > REMEMBERED:
            self._known = {job_id: known for job_id, known in self._known.items() if job_id in wanted}
        if missing:
            jobs = await self._store.get_jobs(sorted(missing))
            self._known |= {job_id: (job.feature_name, len(job.steps)) for job_id, job in jobs.items()}

    def of(self, lease: Lease) -> dict[str, Any]:
        feature_name, total = self._known.get(lease.job_id, (None, None))
        return known(
            job_id=lease.job_id,
            user_id=lease.user_id,
            feature_name=feature_name,
            step=lease.step,
            total_steps=total,
            worker=lease.worker,
            region=lease.region,
            since=round(lease.granted_at, 3),
            expires_at=round(lease.expires_at, 1),
        )


def shown(snapshots: Sequence[ServiceSnapshot], bearers: Bearers) -> dict[str, Any]:
    leases = leases_of(snapshots)
    holds = {hold.id: {"job_id": hold.job_id, "until": hold.until} for each in snapshots for hold in each.holds}
    return {
        "slots": {name: bearers.of(lease) for name, lease in list(leases.items())[:SHOWN]},
        "more_slots": max(0, len(leases) - SHOWN),
        "holds": holds,
    }


def leases_of(snapshots: Sequence[ServiceSnapshot]) -> Mapping[str, Lease]:
    """By name, oldest first. Two shards of one service may have given the same name."""
    found = {
        lease.name if len(snapshots) == 1 else f"{number}/{lease.name}": lease
        for number, each in enumerate(snapshots)
        for lease in each.leases
    }
    return dict(sorted(found.items(), key=lambda item: item[1].granted_at))


def known(**fields: Any) -> dict[str, Any]:
    """Without what is None: a merge patch cannot say that."""
    return {name: value for name, value in fields.items() if value is not None}
