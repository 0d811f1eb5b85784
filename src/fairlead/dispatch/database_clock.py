"""Converts the times of a dispatcher's snapshots to the database's clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fairlead.dispatch.port import ServiceSnapshot
from fairlead.dispatch.rates import RateUse

NOTABLE = 1.0
"""The smallest difference between clocks, in seconds, that is corrected. Smaller ones may be due to the latency of a
reply."""


def by_database(snapshots: Iterable[ServiceSnapshot], ahead: float) -> list[ServiceSnapshot]:
    """Convert the times of leases, breakers and rates to the database's clock. The dispatcher's clock is `ahead`
    seconds ahead of the database's clock."""
    if abs(ahead) < NOTABLE:
        return list(snapshots)
    return [
        replace(
            each,
            leases=tuple(
                replace(lease, granted_at=lease.granted_at - ahead, expires_at=lease.expires_at - ahead)
                for lease in each.leases
            ),
            regions=tuple(
                region if region.resting_until is None else replace(region, resting_until=region.resting_until - ahead)
                for region in each.regions
            ),
            rates=tuple(_use(use, ahead) for use in each.rates),
        )
        for each in snapshots
    ]


def _use(use: RateUse, ahead: float) -> RateUse:
    resting = None if use.resting_until is None else use.resting_until - ahead
    return replace(use, until=use.until - ahead if use.until else use.until, resting_until=resting)
