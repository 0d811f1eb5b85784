"""`app.webhooks`: endpoints that receive events, their secrets, and the log of deliveries."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from fairlead.app import audit
from fairlead.app.audit import AuditLog, act_of
from fairlead.app.runtime import Runtime
from fairlead.domain.events import iso
from fairlead.domain.pagination import Page, check_limit
from fairlead.domain.submission import MAX_USER_ID
from fairlead.domain.validation import check_text, moment
from fairlead.domain.webhooks import (
    ENDS,
    EVENTS,
    FAL_KEY_ID,
    SECRET_BYTES,
    Delivery,
    DeliveryState,
    Endpoint,
    check_events,
    check_url,
    default_id,
    secret_text,
)
from fairlead.engine.clock import id_at
from fairlead.engine.webhooks.signing import fal_jwks
from fairlead.errors import InvalidInput, NotFound, WrongState
from fairlead.store.port import Done
from fairlead.store.webhooks import DeleteEndpoint, DeliveryFilter, Replay, SaveEndpoint

ROTATION_S = 86400.0
"""Seconds for which the former secret signs too."""
MOST_ENDPOINTS = 20
"""Endpoints of one user."""
MOST_REPLAYED = 10_000
MAX_ID = 500


@dataclass(frozen=True, slots=True)
class NewSecret:
    """An endpoint and its new secret, which is returned only once."""

    endpoint: Endpoint
    secret: str = field(repr=False)


class Webhooks:
    """A `user_id` limits each method to the endpoints and deliveries of that user. Without one, they are those of
    everybody, and new endpoints receive the events of all users."""

    def __init__(self, runtime: Runtime, audit: AuditLog) -> None:
        self._runtime = runtime
        self._audit = audit

    # ------------------------------------------------------------ endpoints

    async def endpoints(self, user_id: str | None = None) -> list[Endpoint]:
        return await self._runtime.store.endpoints(user_id)

    async def get(self, endpoint_id: str, *, user_id: str | None = None) -> Endpoint:
        found = await self._runtime.store.endpoints(ids=[check_text(endpoint_id, "endpoint_id", MAX_ID)])
        if not found or found[0].url is None or (user_id is not None and found[0].user_id != user_id):
            raise NotFound(f"there is no endpoint {endpoint_id[:100]}")
        return found[0]

    async def create(
        self,
        url: str,
        events: Sequence[str] | None = None,
        *,
        user_id: str | None = None,
        who: str | None = None,
    ) -> NewSecret:
        """Create an endpoint. It receives events of jobs that are submitted about a second later, or after that."""
        runtime = self._runtime
        if user_id is not None:
            check_text(user_id, "user_id", MAX_USER_ID)
            if len(await self.endpoints(user_id)) >= MOST_ENDPOINTS:
                raise WrongState(f"a user has at most {MOST_ENDPOINTS} endpoints; delete one first")
        now = runtime.clock.now()
        secret = _new_secret()
        endpoint = Endpoint(
            f"ep_{id_at(now).replace('-', '')}",
            self._checked_url(url),
            user_id,
            ENDS if events is None else check_events(events, EVENTS, "/events"),
            now,
            secrets=((secret, None),),
        )
        return NewSecret(await self._save(endpoint, audit.CREATE_ENDPOINT, who), secret)

    async def change(
        self,
        endpoint_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        enabled: bool | None = None,
        user_id: str | None = None,
        who: str | None = None,
    ) -> Endpoint:
        """Change an endpoint, disable it, or enable it again. Deliveries that failed meanwhile can be replayed."""
        endpoint = await self._own(endpoint_id, user_id)
        if url is not None:
            endpoint = replace(endpoint, url=self._checked_url(url))
        if events is not None:
            endpoint = replace(endpoint, events=check_events(events, EVENTS, "/events"))
        if enabled is True:
            endpoint = replace(endpoint, disabled_at=None, disabled_reason=None, failing_since=None)
        elif enabled is False and endpoint.disabled_at is None:
            reason = "by an operator" if user_id is None else "by its user"
            endpoint = replace(endpoint, disabled_at=self._runtime.clock.now(), disabled_reason=reason)
        return await self._save(endpoint, audit.CHANGE_ENDPOINT, who)

    async def rotate(self, endpoint_id: str, *, user_id: str | None = None, who: str | None = None) -> NewSecret:
        """Give an endpoint a new secret. For a day, requests are signed with the former one too."""
        return await self._rotate(await self._own(endpoint_id, user_id), who)

    async def rotate_default(self, user_id: str, *, who: str | None = None) -> NewSecret:
        """Give the URLs of a user's jobs a new secret. For a day, requests are signed with the former one too."""
        return await self._rotate(await self._kept(default_id(user_id), user_id), who)

    async def default_secret(self, user_id: str) -> str:
        """The secret that signs requests to the URLs of a user's jobs. Fronts show it where their product does."""
        return (await self._kept(default_id(user_id), user_id)).secrets[0][0]

    async def jwks(self) -> Mapping[str, Any]:
        """The public keys that verify requests in the shape of fal. Raises ImportError without `fairlead[fal]`."""
        kept = await self._kept(FAL_KEY_ID, None)
        return fal_jwks([secret.removeprefix("whsec_") for secret in kept.signing(self._runtime.clock.now())])

    async def delete(self, endpoint_id: str, *, user_id: str | None = None, who: str | None = None) -> None:
        endpoint = await self._own(endpoint_id, user_id)
        act = act_of(who, audit.DELETE_ENDPOINT, endpoint.id)
        await self._audit.write(act, DeleteEndpoint(endpoint.id))

    async def _own(self, endpoint_id: str, user_id: str | None) -> Endpoint:
        endpoint = await self.get(endpoint_id, user_id=user_id)
        if endpoint.name is not None:
            raise WrongState(f"this endpoint is [webhooks.{endpoint.name}] of the configuration; change it there")
        return endpoint

    def _checked_url(self, url: str) -> str:
        config = self._runtime.config.webhooks
        return check_url(url, allow_http=config.allow_http, allow_private=config.allow_private, pointer="/url")

    async def _kept(self, id_: str, user_id: str | None) -> Endpoint:
        """The row that keeps only a secret; created if there is none."""
        new = Endpoint(id_, None, user_id, (), self._runtime.clock.now(), secrets=((_new_secret(), None),))
        return await self._stored(SaveEndpoint(new, create=True))

    async def _rotate(self, endpoint: Endpoint, who: str | None) -> NewSecret:
        now, secret = self._runtime.clock.now(), _new_secret()
        former = [
            (each, min(until or now + ROTATION_S, now + ROTATION_S))
            for each, until in endpoint.secrets
            if until is None or until > now
        ]
        rotated = replace(endpoint, secrets=((secret, None), *former[:1]))
        return NewSecret(await self._save(rotated, audit.ROTATE_SECRET, who), secret)

    async def _save(self, endpoint: Endpoint, action: str, who: str | None) -> Endpoint:
        details = {"url": endpoint.url, "events": endpoint.events, "user_id": endpoint.user_id}
        act = act_of(who, action, endpoint.id, **details)
        (outcome,) = await self._audit.write(act, SaveEndpoint(endpoint))
        await self._runtime.endpoint_users.refresh()
        assert isinstance(outcome, Done)
        assert isinstance(outcome.value, Endpoint)
        return outcome.value

    async def _stored(self, save: SaveEndpoint) -> Endpoint:
        outcome = await self._runtime.group_commit.write(save)
        assert isinstance(outcome, Done)
        assert isinstance(outcome.value, Endpoint)
        return outcome.value

    # ------------------------------------------------------------ deliveries

    async def deliveries(
        self, where: DeliveryFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[Delivery]:
        """A page of the deliveries that match the filter, newest first, each with its attempts."""
        check_limit(limit)
        if cursor is not None:
            check_text(cursor, "cursor", MAX_ID)
        rows = await self._runtime.store.deliveries(where or DeliveryFilter(), before=cursor, limit=limit + 1)
        return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    async def delivery(self, delivery_id: str, *, user_id: str | None = None) -> Delivery:
        where = DeliveryFilter(user_id, (check_text(delivery_id, "delivery_id", MAX_ID),))
        found = await self._runtime.store.deliveries(where, before=None, limit=1)
        if not found:
            raise NotFound(f"there is no delivery {delivery_id[:100]}")
        return found[0]

    async def replay(self, where: DeliveryFilter, *, who: str | None = None) -> int:
        """Send deliveries that were delivered or have failed again, under their ids. Returns how many; at most 10,000
        at a time."""
        if where == DeliveryFilter(where.user_id):
            raise InvalidInput("name what to replay: ids, a job, an endpoint, a state, an event or a range of time")
        replay = Replay(where, self._runtime.clock.now(), MOST_REPLAYED)
        (outcome,) = await self._audit.write(act_of(who, audit.REPLAY, "", **_shown_filter(where)), replay)
        return int(outcome.value) if isinstance(outcome, Done) else 0


def filter_of(
    *,
    user_id: str | None = None,
    ids: Sequence[str] | None = None,
    job_id: str | None = None,
    endpoint_id: str | None = None,
    state: DeliveryState | str | None = None,
    event: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
) -> DeliveryFilter:
    """Make a filter of deliveries. `since` (inclusive) and `until` (exclusive) apply to the time of the event."""
    return DeliveryFilter(
        user_id,
        None if ids is None else tuple(ids),
        job_id,
        endpoint_id,
        None if state is None else DeliveryState(state),
        event,
        None if since is None else moment(since, "since"),
        None if until is None else moment(until, "until"),
    )


def _shown_filter(where: DeliveryFilter) -> dict[str, Any]:
    names = ("user_id", "ids", "job_id", "endpoint_id", "state", "event")
    shown: dict[str, Any] = {name: getattr(where, name) for name in names if getattr(where, name) is not None}
    return shown | {name: iso(getattr(where, name)) for name in ("since", "until") if getattr(where, name) is not None}


def _new_secret() -> str:
    return secret_text(secrets.token_bytes(SECRET_BYTES))


def shown_endpoint(endpoint: Endpoint) -> dict[str, Any]:
    """The fields of an endpoint that callers may see: all but its secrets."""
    return {
        "id": endpoint.id,
        "url": endpoint.url,
        "events": list(endpoint.events),
        "user_id": endpoint.user_id,
        "name": endpoint.name,
        "created_at": iso(endpoint.created_at),
        "disabled_at": iso(endpoint.disabled_at),
        "disabled_reason": endpoint.disabled_reason,
        "failing_since": iso(endpoint.failing_since),
    }


def shown_delivery(delivery: Delivery) -> Mapping[str, Any]:
    return {
        "id": delivery.id,
        "event": delivery.event,
        "state": delivery.state,
        "user_id": delivery.user_id,
        "job_id": delivery.job_id,
        "batch_id": delivery.batch_id,
        "endpoint_id": delivery.endpoint_id,
        "url": delivery.url if delivery.endpoint_id is None else None,
        "created_at": iso(delivery.created_at),
        "next_at": iso(delivery.next_at),
        "attempts": list(delivery.log),
    }
