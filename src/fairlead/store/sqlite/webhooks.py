"""Encodes the writes of webhooks as rows of the view `batch` (see `webhooks.sql`), and runs the reads of webhooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from fairlead.domain.transitions import Move
from fairlead.domain.webhooks import Delivery, DeliveryState, Endpoint
from fairlead.store.port import Done, Outcome
from fairlead.store.records import NO_ENDPOINT, OTHER_ATTEMPT
from fairlead.store.rows import micros, micros_by, seconds
from fairlead.store.sqlite.encode import Row, json_body
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
    events_of,
)


def rows_of_moves(moves: Sequence[Move]) -> list[Row]:
    """The rows that write the events of moves. They follow the rows of the moves."""
    hooked = [(n, move) for n, move in enumerate(moves) if move.webhook is not None]
    events = [(n, *row) for n, move in hooked for row in events_of([move])]
    return [("event", json_body(events))] if events else []


def webhook_rows(transitions: Sequence[Any]) -> list[Row]:
    return [_row(transition) for transition in transitions]


def _row(transition: Any) -> Row:
    match transition:
        case RecordEvent():
            return "event", json_body([(None, *row) for row in event_rows([transition])])
        case SaveEndpoint(endpoint, create):
            return "endpoint", json_body((*endpoint_row(endpoint), create))
        case DeclareEndpoints(endpoints):
            return "declare_endpoints", json_body([endpoint_row(endpoint) for endpoint in endpoints])
        case DeleteEndpoint(endpoint_id):
            return "delete_endpoint", endpoint_id
        case DisableEndpoint(endpoint_id, reason, event_id):
            return "disable_endpoint", json_body((endpoint_id, reason, event_id))
        case ClaimDeliveries(now, until, limit, each, trusted, probes, busy, after):
            body = (micros_by(now), micros(until), limit, each, sorted(busy), sorted(trusted), after, probes)
            return "claim_deliveries", json_body(body)
        case RecordAttempt(id_, attempts, state, next_at, log, now, body, endpoint_id):
            text = orjson.dumps(log).decode()
            values = (id_, attempts, STATE_CODES[state], micros(next_at), text, body, endpoint_id, micros(now))
            return "attempt", json_body(values)
        case Replay(where, _, limit):
            return "replay", json_body((*where.row(), limit))
        case PruneDeliveries(created_before, limit):
            return "prune_deliveries", json_body((micros(created_before), limit))
        case _:
            raise TypeError(f"not a write of webhooks: {transition!r}")


OUTCOMES: dict[type, tuple[str, Callable[[Any], Outcome]]] = {
    SaveEndpoint: ("endpoint", lambda row: Done(endpoint_of(row))),
    DeleteEndpoint: ("delete_endpoint", lambda changed: Done() if changed else NO_ENDPOINT),
    DisableEndpoint: ("disable_endpoint", lambda changed: Done() if changed else NO_ENDPOINT),
    ClaimDeliveries: ("claimed", lambda rows: Done([claimed_of(row) for row in rows])),
    RecordAttempt: ("attempt", lambda changed: Done() if changed else OTHER_ATTEMPT),
    Replay: ("replay", Done),
    PruneDeliveries: ("prune_deliveries", Done),
}


class SqliteWebhookReads:
    """The reads of webhooks; `Reads` inherits them."""

    _sql: dict[str, str]

    async def _ask(self, sql: str, *parameters: Any) -> Any:
        raise NotImplementedError

    async def webhook_users(self) -> frozenset[str | None]:
        return frozenset(orjson.loads(await self._ask(self._sql["webhook_users"])))

    async def endpoints(self, user_id: str | None = None, *, ids: Sequence[str] | None = None) -> list[Endpoint]:
        chosen = None if ids is None else orjson.dumps(list(ids)).decode()
        rows = orjson.loads(await self._ask(self._sql["endpoints"], user_id, chosen))
        return [endpoint_of(row) for row in rows]

    async def deliveries(self, where: DeliveryFilter, *, before: str | None, limit: int) -> list[Delivery]:
        rows = orjson.loads(await self._ask(self._sql["deliveries"], *where.row(), before, limit))
        return [delivery_of(row) for row in rows]

    async def count_deliveries(self) -> dict[DeliveryState, int]:
        counts = orjson.loads(await self._ask(self._sql["count_deliveries"]))
        return {STATES[state]: count for state, count in counts}

    async def next_delivery(self) -> float | None:
        return seconds(await self._ask(self._sql["next_delivery"]))
