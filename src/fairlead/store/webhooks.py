"""Writes, reads and rows of webhooks, shared by both engines: endpoints, deliveries, and the events that make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from fairlead.domain.job import Job
from fairlead.domain.transitions import Move
from fairlead.domain.webhooks import Delivery, DeliveryState, Endpoint, JobWebhook
from fairlead.errors import InvalidInput

STATES = (DeliveryState.PENDING, DeliveryState.DELIVERED, DeliveryState.FAILED)
STATE_CODES = {state: code for code, state in enumerate(STATES)}


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Write the deliveries of an event that is not a move of its job. Refused if the job is no longer at `run`."""

    job_id: str
    run: int
    event: str
    webhook: JobWebhook
    about: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SaveEndpoint:
    """Store an endpoint. With `create`, an endpoint that exists is left as it is. Returns the stored endpoint."""

    endpoint: Endpoint
    create: bool = False


@dataclass(frozen=True, slots=True)
class DeclareEndpoints:
    """Store the endpoints of the configuration, and delete earlier ones that it no longer has. An endpoint whose URL
    and events are unchanged keeps its state; a changed secret replaces the current one."""

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class DeleteEndpoint:
    """Delete an endpoint. Its waiting deliveries fail. Refused if there is none."""

    endpoint_id: str


@dataclass(frozen=True, slots=True)
class DisableEndpoint:
    """Disable an endpoint: its waiting deliveries fail, and the event `endpoint.disabled` goes to endpoints of the
    whole system. Refused if it is disabled already or does not exist."""

    endpoint_id: str
    reason: str
    event_id: str


@dataclass(frozen=True, slots=True, eq=False)
class ClaimDeliveries:
    """Take due deliveries, at most `limit`, and keep other processes from taking them until `until`. Returns a list of
    `Claimed`.

    At most `each` deliveries of a receiver in `trusted` are taken, at most `probes` of any other one, and none of a
    receiver in `busy`. Receivers are taken in turn, beginning after `after`. A delivery whose job has an earlier one
    that waits for the same receiver is not taken.
    """

    now: float
    until: float
    limit: int
    each: int
    trusted: frozenset[str] = frozenset()
    probes: int = 1
    busy: frozenset[str] = frozenset()
    after: str = ""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that this process sends, and the endpoint whose secrets sign it: None if it was deleted, or if the
    user of a job's URL has no secret yet."""

    delivery: Delivery
    endpoint: Endpoint | None


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """Store the result of an attempt. Refused if the delivery no longer has `attempts` attempts. The endpoint counts as
    failing from its first failure until its next success."""

    delivery_id: str
    attempts: int
    state: DeliveryState
    next_at: float | None
    log: Sequence[Mapping[str, Any]]
    now: float
    body: str | None = None
    endpoint_id: str | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Send deliveries that are not waiting again, under their ids, at most `limit`. Returns how many. Deliveries of
    disabled or deleted endpoints are left out."""

    where: DeliveryFilter
    now: float
    limit: int


@dataclass(frozen=True, slots=True)
class PruneDeliveries:
    """Delete deliveries that are not waiting and were created before this time, at most `limit`. Returns how many."""

    created_before: float
    limit: int


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Selects deliveries. All conditions that are set must hold. `since` is inclusive, `until` exclusive."""

    user_id: str | None = None
    ids: tuple[str, ...] | None = None
    job_id: str | None = None
    endpoint_id: str | None = None
    state: DeliveryState | None = None
    event: str | None = None
    since: float | None = None
    until: float | None = None

    def __post_init__(self) -> None:
        if "\0" in f"{self.user_id}{self.ids}{self.job_id}{self.endpoint_id}{self.event}":
            raise InvalidInput("a name must not contain the character NUL")

    def row(self) -> tuple[Any, ...]:
        state = None if self.state is None else STATE_CODES[self.state]
        ids = None if self.ids is None else orjson.dumps(self.ids).decode()
        since, until = (None if moment is None else round(moment * 1e6) for moment in (self.since, self.until))
        return self.user_id, ids, self.job_id, self.endpoint_id, state, self.event, since, until


KINDS: tuple[type, ...] = (
    RecordEvent,
    SaveEndpoint,
    DeclareEndpoints,
    DeleteEndpoint,
    RecordAttempt,
    DisableEndpoint,
    ClaimDeliveries,
    Replay,
    PruneDeliveries,
)
"""The writes of webhooks, in the order in which a commit applies them, after all moves and batches."""


class WebhookReads(Protocol):
    async def webhook_users(self) -> frozenset[str | None]:
        """The users that have enabled endpoints. None stands for all users."""
        ...

    async def endpoints(self, user_id: str | None = None, *, ids: Sequence[str] | None = None) -> list[Endpoint]:
        """The endpoints with a URL, oldest first: all, or those of one user. With `ids`, the rows with these ids."""
        ...

    async def deliveries(self, where: DeliveryFilter, *, before: str | None, limit: int) -> list[Delivery]:
        """The deliveries that match, newest first, without bodies. `before` is the last id of the previous page."""
        ...

    async def count_deliveries(self) -> dict[DeliveryState, int]: ...

    async def next_delivery(self) -> float | None:
        """When the next delivery is due; None if none waits."""
        ...


@dataclass(slots=True)
class EventRows:
    """The columns of events, for one statement: job, run, event, the receiver and what is known about it, and whether
    endpoints may want it."""

    rows: list[tuple[str, int, str, str | None, str, bool]] = field(default_factory=list)

    def add(self, job_id: str, run: int, event: str, webhook: JobWebhook, about: Mapping[str, Any]) -> None:
        receiver = webhook.receiver_of(event)
        own = {} if receiver is None else {"url": webhook.url, "shape": webhook.shape, "subject": webhook.subject}
        text = orjson.dumps({**about, **own}).decode()
        self.rows.append((job_id, run, event, receiver, text, webhook.endpoints))


def about_move(move: Move) -> dict[str, Any]:
    """What a delivery keeps of the move that ended its job: the job may move on before the delivery is sent."""
    return {
        "status": move.status.value,
        "finished_at": move.finished_at,
        "error": move.error,
        "retryable": move.retryable,
    }


def about_start(job: Job) -> dict[str, Any]:
    return {"status": job.status.value, "started_at": job.started_at, "attempt": job.attempt}


def events_of(moves: Iterable[Move]) -> list[tuple[str, int, str, str | None, str, bool]]:
    """The rows of the events that these moves cause."""
    rows = EventRows()
    for move in moves:
        event, webhook = move.event, move.webhook
        if event is not None and webhook is not None and webhook.wants(event):
            rows.add(move.job_id, move.run + 1, event, webhook, about_move(move))
    return rows.rows


def event_rows(events: Iterable[RecordEvent]) -> list[tuple[str, int, str, str | None, str, bool]]:
    rows = EventRows()
    for one in events:
        rows.add(one.job_id, one.run, one.event, one.webhook, one.about)
    return rows.rows


def endpoint_row(endpoint: Endpoint) -> tuple[Any, ...]:
    if any("\0" in text for text in (endpoint.id, endpoint.url, endpoint.user_id) if text is not None):
        raise InvalidInput("a name must not contain the character NUL")
    return (
        endpoint.id,
        endpoint.user_id,
        endpoint.url,
        orjson.dumps(endpoint.events).decode(),
        orjson.dumps(endpoint.secrets).decode(),
        endpoint.name,
        *(
            None if moment is None else round(moment * 1e6)
            for moment in (endpoint.created_at, endpoint.disabled_at, endpoint.failing_since)
        ),
        endpoint.disabled_reason,
    )


def endpoint_of(row: Sequence[Any]) -> Endpoint:
    id_, user_id, url, events, secrets, name, created_at, disabled_at, failing_since, reason = row
    return Endpoint(
        id_,
        url,
        user_id,
        tuple(orjson.loads(events)),
        created_at / 1e6,
        name,
        None if disabled_at is None else disabled_at / 1e6,
        reason,
        None if failing_since is None else failing_since / 1e6,
        tuple((secret, until) for secret, until in orjson.loads(secrets)),
    )


def delivery_of(row: Sequence[Any]) -> Delivery:
    id_, event, receiver, user_id, created_at, job_id, batch_id, endpoint_id, state, attempts, next_at, *texts = row
    about, log, body = texts
    return Delivery(
        id_,
        event,
        receiver,
        user_id,
        created_at / 1e6,
        job_id,
        batch_id,
        endpoint_id,
        STATES[state],
        attempts,
        None if next_at is None else next_at / 1e6,
        orjson.loads(about),
        () if log is None else orjson.loads(log),
        body,
    )


def claimed_of(row: Sequence[Any]) -> Claimed:
    """A row of a claim: the columns of the delivery, then those of the endpoint, NULL if there is none."""
    delivery, endpoint = row[:14], row[14:]
    return Claimed(delivery_of(delivery), None if endpoint[0] is None else endpoint_of(endpoint))
