"""Writes and reads of webhooks in PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from fairlead.domain.webhooks import Delivery, DeliveryState, Endpoint
from fairlead.store.commits import MOVED_ON
from fairlead.store.port import Done, Outcome
from fairlead.store.postgres.encode import Columns, columns
from fairlead.store.postgres.queries import READS
from fairlead.store.records import NO_ENDPOINT, OTHER_ATTEMPT
from fairlead.store.rows import micros, micros_by, seconds
from fairlead.store.webhooks import (
    STATE_CODES,
    STATES,
    ClaimDeliveries,
    DeclareEndpoints,
    DeleteEndpoint,
    DeliveryFilter,
    DisableEndpoint,
    PruneDeliveries,
    RecordAttempt,
    RecordEvent,
    Replay,
    SaveEndpoint,
    claimed_of,
    delivery_of,
    endpoint_of,
    endpoint_row,
    event_rows,
)

Ask = Callable[..., Awaitable[list[Any]]]


def event_columns(events: Sequence[Sequence[Any]]) -> Columns:
    return columns(events)


async def apply(transition: Any, ask: Ask, now: int) -> Outcome:
    """Apply one write of webhooks within an open transaction."""
    match transition:
        case RecordEvent(job_id, run):
            if not await ask("lock_runs", [job_id], f"{{{run}}}"):
                return MOVED_ON
            await ask("record_events", *event_columns(event_rows([transition])), now)
            return Done()
        case ClaimDeliveries():
            return Done(await _claim(transition, ask, now))
        case RecordAttempt():
            return await _record(transition, ask)
        case Replay(where, _, limit):
            return Done(len(await ask("replay", *where.row(), now, limit)))
        case PruneDeliveries(created_before, limit):
            return Done(len(await ask("prune_deliveries", micros(created_before), limit)))
        case _:
            return await _change_endpoint(transition, ask, now)


async def _change_endpoint(transition: Any, ask: Ask, now: int) -> Outcome:
    match transition:
        case SaveEndpoint(endpoint, create):
            rows = await ask("create_endpoint" if create else "save_endpoint", *endpoint_row(endpoint))
            return Done(endpoint_of(rows[0]))
        case DeclareEndpoints(endpoints):
            for endpoint in endpoints:
                await ask("declare_endpoint", *endpoint_row(endpoint)[:6], now)
            gone = await ask("undeclare_endpoints", [endpoint.id for endpoint in endpoints])
            await ask("fail_deliveries", [row[0] for row in gone])
            return Done()
        case DeleteEndpoint(endpoint_id):
            await ask("fail_deliveries", [endpoint_id])
            return Done() if await ask("delete_endpoint", endpoint_id) else NO_ENDPOINT
        case DisableEndpoint(endpoint_id, reason, event_id):
            if not await ask("disable_endpoint", endpoint_id, reason, now):
                return NO_ENDPOINT
            await ask("fail_deliveries", [endpoint_id])
            await ask("record_disabled", endpoint_id, reason, now, event_id)
            return Done()
        case _:
            raise TypeError(f"not a write of webhooks: {transition!r}")


async def _claim(claim: ClaimDeliveries, ask: Ask, now: int) -> list[Any]:
    moment = min(micros_by(claim.now), now)
    until, busy, trusted = micros(claim.until), sorted(claim.busy), sorted(claim.trusted)
    rows = await ask(
        "claim_deliveries", moment, until, claim.limit, claim.each, busy, trusted, claim.after, claim.probes
    )
    return [claimed_of(row) for row in rows]


async def _record(attempt: RecordAttempt, ask: Ask) -> Outcome:
    log, state = orjson.dumps(attempt.log).decode(), STATE_CODES[attempt.state]
    next_at, body = micros(attempt.next_at), attempt.body
    rows = await ask("record_attempt", attempt.delivery_id, attempt.attempts, state, next_at, log, body)
    if attempt.endpoint_id is not None:
        delivered = attempt.state is DeliveryState.DELIVERED
        await ask("record_health", attempt.endpoint_id, delivered, micros(attempt.now))
    return Done() if rows else OTHER_ATTEMPT


class PostgresWebhookReads:
    """The reads of webhooks; `Reads` inherits them."""

    async def _ask(self, sql: str, *parameters: Any) -> list[Any]:
        raise NotImplementedError

    async def webhook_users(self) -> frozenset[str | None]:
        return frozenset(row[0] for row in await self._ask(READS["webhook_users"]))

    async def endpoints(self, user_id: str | None = None, *, ids: Sequence[str] | None = None) -> list[Endpoint]:
        rows = await self._ask(READS["endpoints"], user_id, None if ids is None else list(ids))
        return [endpoint_of(row) for row in rows]

    async def deliveries(self, where: DeliveryFilter, *, before: str | None, limit: int) -> list[Delivery]:
        return [delivery_of(row) for row in await self._ask(READS["deliveries"], *where.row(), before, limit)]

    async def count_deliveries(self) -> dict[DeliveryState, int]:
        return {STATES[state]: count for state, count in await self._ask(READS["count_deliveries"])}

    async def next_delivery(self) -> float | None:
        ((moment,),) = await self._ask(READS["next_delivery"])
        return seconds(moment)
