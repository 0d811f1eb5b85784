"""Sends the deliveries that are due (docs/adr/0033)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.artifacts.files import Files
from fairlead.artifacts.values import load_record
from fairlead.domain.config_webhooks import WebhooksConfig
from fairlead.domain.events import iso
from fairlead.domain.files import named_in
from fairlead.domain.webhook_shapes import Subject, body_of, subject_id
from fairlead.domain.webhooks import (
    DELAYS,
    FAL_KEY_ID,
    LOG_SIZE,
    SECRET_BYTES,
    Delivery,
    DeliveryState,
    Endpoint,
    Shape,
    default_id,
    retry_at,
    secret_text,
)
from fairlead.engine.clock import Clock, id_at
from fairlead.engine.webhooks import signing
from fairlead.engine.webhooks.port import Sender, Sent
from fairlead.errors import ConfigError, Unavailable
from fairlead.log_fields import with_fields
from fairlead.outage import Outage
from fairlead.pacing import Interval
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Done, Store, Transition
from fairlead.store.webhooks import (
    ClaimDeliveries,
    Claimed,
    DisableEndpoint,
    PruneDeliveries,
    RecordAttempt,
    SaveEndpoint,
)

if TYPE_CHECKING:
    from fairlead.engine.tracing import Tracing

log = logging.getLogger("fairlead.webhooks")

LOOK_EVERY = 0.5
LEASE_MARGIN = 10.0
"""A claim lasts this many seconds longer than a request may take."""
EACH = 4
"""Requests to one receiver at a time, if its last one succeeded; others get one."""
MOST_REMEMBERED = 10_000
"""Receivers whose last result is remembered. Beyond that, all are forgotten."""
PRUNE_EVERY = 60.0
PRUNED = 1000
SHOWS_FILES = frozenset({Shape.REPLICATE, Shape.FAL})
"""Shapes that show files as URLs. The URLs are valid as long as the delivery may be sent."""
DISABLE_AFTER = 3 * 86400.0
"""An endpoint whose requests all failed for this long is disabled when the last attempt of a delivery fails."""
GONE = "the receiver answered 410 Gone"


class WebhooksLoop:
    """Claims due deliveries and sends them, many at a time. Counts the deliveries that it claimed (`scanned`), and the
    ones that receivers accepted (`queued`)."""

    name = "webhooks"

    def __init__(
        self,
        config: WebhooksConfig,
        store: Store,
        group_commit: GroupCommit,
        clock: Clock,
        new_sender: Callable[[], Sender] | None = None,
        tracing: Tracing | None = None,
        requests: Counter[str] | None = None,
        files: Files | None = None,
    ) -> None:
        """`requests` counts the requests by result: `accepted` or `failed`."""
        self._config = config
        self._store = store
        self._group_commit = group_commit
        self._clock = clock
        self._files = files
        self._new_sender = new_sender or (lambda: http_sender(config))
        self._tracing = tracing
        self._requests = Counter() if requests is None else requests
        self._sender: Sender | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[str] = Counter()
        self._trusted: set[str] = set()
        """Receivers that accepted their last request."""
        self._failing: set[str] = set()
        """Receivers that did not."""
        self._last = ""
        self._pruning = Interval(PRUNE_EVERY)
        self._outage = Outage(log, "writing the results of webhooks")
        self._warned = False
        self.scanned = self.queued = 0

    async def tick(self, now: float) -> float:
        if self._pruning.due(self._clock.monotonic()):
            await self._group_commit.write(PruneDeliveries(now - self._config.keep, PRUNED))
        claimed = await self._claim(now)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
        following = await self._store.next_delivery() if not self._tasks else None
        soonest = self._clock.now() if claimed or self._tasks else now + LOOK_EVERY
        return soonest if following is None else min(max(following, soonest), now + LOOK_EVERY)

    async def close(self) -> None:
        """Stop sending, because another manager leads or this process ends. What was being sent is sent again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    # ------------------------------------------------------------ claim

    async def _claim(self, now: float) -> int:
        """Take due deliveries for the free slots and begin to send them. Reading first costs no commit."""
        free = self._config.concurrency - len(self._tasks)
        due = await self._store.next_delivery() if free > 0 else None
        if due is None or due > now or not self._ready():
            return 0
        probes = self._room_for_probes()
        busy = {each for each, count in self._in_flight.items() if count >= (EACH if each in self._trusted else 1)}
        if sum(self._in_flight[receiver] for receiver in self._failing) >= self._quarter:
            busy |= self._failing
        until = now + self._config.timeout + LEASE_MARGIN
        limit = min(free, probes) if probes else free
        claim = ClaimDeliveries(
            now, until, limit, EACH, frozenset(self._trusted), min(1, probes), frozenset(busy), self._last
        )
        outcome = await self._group_commit.write(claim)
        assert isinstance(outcome, Done)
        claims: list[Claimed] = outcome.value
        if claims:
            self._last = claims[-1].delivery.receiver
            self.scanned += len(claims)
            await self._spawn(claims)
        return len(claims)

    @property
    def _quarter(self) -> int:
        return max(1, self._config.concurrency // 4)

    def _room_for_probes(self) -> int:
        """How many requests to receivers that have not accepted one may be begun. A quarter of the slots is kept for
        the others: many receivers that hang must not take them all."""
        untried = sum(count for receiver, count in self._in_flight.items() if receiver not in self._trusted)
        return max(0, max(1, self._config.concurrency - self._quarter) - untried)

    def _ready(self) -> bool:
        if self._sender is None:
            try:
                self._sender = self._new_sender()
            except ConfigError as error:
                if not self._warned:
                    self._warned = True
                    log.error("webhooks wait: %s", error)
                return False
        return True

    async def _spawn(self, claims: Sequence[Claimed]) -> None:
        subjects = await self._subjects([claim.delivery for claim in claims])
        traces = await self._traces(claims) if self._tracing is not None else {}
        for claim in claims:
            receiver = claim.delivery.receiver
            self._in_flight[receiver] += 1
            subject = subjects.get(claim.delivery.id, Subject())
            task = asyncio.get_running_loop().create_task(
                self._deliver(claim, subject, traces.get(claim.delivery.job_id or "")), name="fairlead-webhook"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(partial(self._landed, receiver))

    def _landed(self, receiver: str, _: asyncio.Task[None]) -> None:
        self._in_flight[receiver] -= 1
        if not self._in_flight[receiver]:
            del self._in_flight[receiver]

    async def _subjects(self, deliveries: Sequence[Delivery]) -> dict[str, Subject]:
        """What the deliveries without a stored body are about, by delivery."""
        new = [delivery for delivery in deliveries if delivery.body is None]
        records = await self._store.get_records([each.job_id for each in new if each.job_id is not None])
        subjects = {each.id: Subject(record=records.get(each.job_id or "")) for each in new}
        for each in new:
            if each.batch_id is not None:
                subjects[each.id] = Subject(batch=await self._store.get_batch(each.batch_id))
        return subjects

    async def _traces(self, claims: Sequence[Claimed]) -> dict[str, str]:
        """The traces of the jobs that have one, by job."""
        found = await self._store.get_jobs(
            [each.delivery.job_id for each in claims if each.delivery.job_id is not None]
        )
        return {job_id: job.trace for job_id, job in found.items() if job.trace is not None}

    # ------------------------------------------------------------ send

    async def _deliver(self, claim: Claimed, subject: Subject, trace: str | None = None) -> None:
        delivery, endpoint = claim.delivery, claim.endpoint
        span = None if trace is None or self._tracing is None else self._tracing.webhook(delivery, trace)
        began = self._clock.monotonic()
        body = delivery.body
        try:
            if body is None:
                body = body_of(delivery, await self._with_files(delivery, subject))
            sent = await self._send(delivery, endpoint, body, {} if span is None else span.headers)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("delivery %s could not be sent", delivery.id, extra=_fields(delivery))
            sent = Sent(None, f"the request could not be made: {type(error).__name__}")
        if span is not None:
            span.end(sent.status, None if sent.accepted else sent.text)
        await self._record(delivery, endpoint, sent, body or "", self._clock.monotonic() - began)

    async def _with_files(self, delivery: Delivery, subject: Subject) -> Subject:
        """The subject with its large values, and with tickets for its files, if the body shows them."""
        files, record = self._files, subject.record
        if files is None or record is None or delivery.shape not in SHOWS_FILES:
            return subject
        record = await load_record(files, record)
        subject = replace(subject, record=record)
        named = {*named_in(record.input_json), *named_in(subject.result_json or "")}
        tickets = {name: (await files.ticket(name, sum(DELAYS)))[0] for name in named}
        return replace(subject, tickets=tickets)

    async def _send(
        self, delivery: Delivery, endpoint: Endpoint | None, body: str, trace_headers: Mapping[str, str]
    ) -> Sent:
        assert self._sender is not None
        url = delivery.url if delivery.endpoint_id is None else None if endpoint is None else endpoint.url
        if url is None:
            return Sent(410, "the endpoint was deleted")
        now = self._clock.now()
        if endpoint is None:
            endpoint = await self._new_secret(default_id(delivery.user_id), delivery.user_id)
        headers = signing.headers_of(delivery, body, endpoint.signing(now), now)
        if delivery.shape is Shape.FAL:
            key = (await self._new_secret(FAL_KEY_ID, None)).secrets[0][0].removeprefix("whsec_")
            headers |= signing.fal_headers(subject_id(delivery) or "", delivery.user_id, body, key, now)
        return await self._sender.send(url, body, {**headers, **trace_headers})

    async def _new_secret(self, id_: str, user_id: str | None) -> Endpoint:
        """The secret kept under this id; a new one if there is none."""
        secret = secret_text(secrets.token_bytes(SECRET_BYTES))
        new = Endpoint(id_, None, user_id, (), self._clock.now(), secrets=((secret, None),))
        outcome = await self._group_commit.write(SaveEndpoint(new, create=True))
        assert isinstance(outcome, Done)
        assert isinstance(outcome.value, Endpoint)
        return outcome.value

    # ------------------------------------------------------------ record

    async def _record(self, delivery: Delivery, endpoint: Endpoint | None, sent: Sent, body: str, took: float) -> None:
        now = self._clock.now()
        attempt = record_of(delivery, sent, body, took, now, self._clock.randomness())
        if len(self._trusted) + len(self._failing) >= MOST_REMEMBERED:
            self._trusted.clear()
            self._failing.clear()
        self._trusted.discard(delivery.receiver)
        self._failing.discard(delivery.receiver)
        (self._trusted if sent.accepted else self._failing).add(delivery.receiver)
        self._requests["accepted" if sent.accepted else "failed"] += 1
        if sent.accepted:
            self.queued += 1
        else:
            log.info(
                "delivery %s of %s failed: %s",
                delivery.id,
                delivery.event,
                sent.status or sent.text,
                extra=_fields(delivery),
            )
        writes: list[Transition] = [attempt]
        if reason := disables(endpoint if delivery.endpoint_id else None, attempt, sent, now):
            log.warning("the webhook endpoint %s is disabled: %s", delivery.endpoint_id, reason)
            writes.append(DisableEndpoint(str(delivery.endpoint_id), reason, id_at(now)))
        while True:
            try:
                await self._group_commit.write_all(writes)
            except Unavailable as error:
                self._outage.began(error)
                await asyncio.sleep(1.0)
            else:
                self._outage.ended()
                return


def record_of(delivery: Delivery, sent: Sent, body: str, took: float, now: float, randomness: float) -> RecordAttempt:
    """What to store after an attempt: whether the delivery has ended, or when it is tried again."""
    entry: dict[str, Any] = {
        "at": iso(now),
        "status": sent.status,
        "duration_ms": round(took * 1000),
        "response": sent.text,
    }
    state, next_at = DeliveryState.DELIVERED, None
    if not sent.accepted:
        next_at = None if sent.gone else retry_at(delivery.attempts + 1, now, randomness, sent.retry_after)
        state = DeliveryState.FAILED if next_at is None else DeliveryState.PENDING
    return RecordAttempt(
        delivery.id,
        delivery.attempts,
        state,
        next_at,
        [*delivery.log, entry][-LOG_SIZE:],
        now,
        # Every attempt sends the same body. It is not needed once the delivery has ended.
        (body or None) if state is DeliveryState.PENDING else None,
        delivery.endpoint_id,
    )


def disables(endpoint: Endpoint | None, attempt: RecordAttempt, sent: Sent, now: float) -> str | None:
    """Why this attempt disables the endpoint; None if it does not."""
    if endpoint is None or endpoint.disabled_at is not None:
        return None
    if sent.gone:
        return GONE
    since = endpoint.failing_since
    if attempt.state is DeliveryState.FAILED and since is not None and now - since >= DISABLE_AFTER:
        return f"no request succeeded since {iso(since)}; the last error: {sent.status or sent.text}"
    return None


def _fields(delivery: Delivery) -> dict[str, Any]:
    return with_fields(job_id=delivery.job_id, user_id=delivery.user_id)


def http_sender(config: WebhooksConfig) -> Sender:
    try:
        import standardwebhooks  # noqa: F401

        from fairlead.engine.webhooks.sender import HttpSender
    except ImportError:
        raise ConfigError(["webhooks need an HTTP client: pip install 'fairlead[server]'"]) from None
    return HttpSender(config)
