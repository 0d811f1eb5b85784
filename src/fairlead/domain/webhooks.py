"""Webhooks: events, the webhook of a job, endpoints, deliveries, and when a failed delivery is tried again."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from fairlead.domain.fast_dataclass import StringEnum, fast_dataclass
from fairlead.domain.webhook_addresses import is_public
from fairlead.errors import InvalidInput

STARTED: Final = "job.started"
COMPLETED: Final = "job.completed"
FAILED: Final = "job.failed"
CANCELLED: Final = "job.cancelled"
BATCH_ENDED: Final = "batch.ended"
ENDPOINT_DISABLED: Final = "endpoint.disabled"
BUDGET_THRESHOLD: Final = "budget.threshold"
JOB_EVENTS: Final = (STARTED, COMPLETED, FAILED, CANCELLED)
BATCH_EVENTS: Final = (*JOB_EVENTS, BATCH_ENDED)
EVENTS: Final = (*BATCH_EVENTS, ENDPOINT_DISABLED, BUDGET_THRESHOLD)
ENDS: Final = (COMPLETED, FAILED, CANCELLED)
"""The events of a job whose submit names none."""

MAX_URL = 2000
SECRET_PREFIX = "whsec_"
SECRET_BYTES = 32
DELAYS = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
"""Seconds from one failed attempt to the next: ten attempts within 75 hours, the schedule of Standard Webhooks."""
JITTER = 0.2
"""The share of a delay that is random."""
LONGEST_WAIT = 86400.0
"""A `Retry-After` is respected up to this many seconds."""
LOG_SIZE = 20
"""The number of attempts that the log of a delivery keeps."""


class Shape(StringEnum):
    """The form of a delivery's body and signature: Fairlead's own, or that of another product."""

    FAIRLEAD = "fairlead"
    OPENAI = "openai"
    REPLICATE = "replicate"
    FAL = "fal"


@fast_dataclass
class JobWebhook:
    """The webhook of a job or batch. `endpoints`: an endpoint may want its events. `subject` is the id under which the
    client of a front knows the job, if it is not the job's id."""

    url: str | None = None
    events: tuple[str, ...] = ENDS
    shape: str = Shape.FAIRLEAD
    subject: str | None = None
    endpoints: bool = False

    def wants(self, event: str) -> bool:
        return self.endpoints or (self.url is not None and event in self.events)

    def receiver_of(self, event: str) -> str | None:
        """The receiver of the job's own URL for this event; None if the URL does not get the event."""
        return receiver_of(self.url) if self.url is not None and event in self.events else None


ENDPOINTS_ONLY = JobWebhook(endpoints=True)
SILENT = JobWebhook(events=())
"""The webhook of a batch that sends no event at its end, because it is a part of a file batch."""


def receiver_of(url: str) -> str:
    """Deliveries to one host and port share a receiver: one that does not answer holds up its own deliveries only."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.lower()}"[:MAX_URL]


class DeliveryState(StringEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A stored receiver. Without a `user_id` it receives the events of all users. `secrets` are pairs of a secret and
    the time until which it signs; the first is the current one, which has no end. An endpoint without a `url` only
    keeps a secret. `name` is the section of the configuration, or None."""

    id: str
    url: str | None
    user_id: str | None = None
    events: tuple[str, ...] = ENDS
    created_at: float = 0.0
    name: str | None = None
    disabled_at: float | None = None
    disabled_reason: str | None = None
    failing_since: float | None = None
    secrets: tuple[tuple[str, float | None], ...] = field(default=(), repr=False)

    def signing(self, now: float) -> list[str]:
        """The secrets that sign at this time."""
        return [secret for secret, until in self.secrets if until is None or until > now]


def default_id(user_id: str) -> str:
    """The id under which the secret for URLs of this user's jobs is kept."""
    return f"user:{user_id}"


FAL_KEY_ID: Final = "key:fal"
"""The id under which the Ed25519 key is kept."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one receiver. `about` has what was true at the event. `log` has the attempts, newest last."""

    id: str
    event: str
    receiver: str
    user_id: str
    created_at: float
    job_id: str | None = None
    batch_id: str | None = None
    endpoint_id: str | None = None
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    next_at: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Mapping[str, Any]] = ()
    body: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str | None:
        return self.about.get("url")

    @property
    def shape(self) -> Shape:
        return Shape(self.about.get("shape", Shape.FAIRLEAD))


def retry_at(attempts: int, now: float, randomness: float, retry_after: float | None = None) -> float | None:
    """When to try again after this many failed attempts; None if they were the last."""
    if attempts > len(DELAYS):
        return None
    delay = DELAYS[attempts - 1] * (1 - JITTER / 2 + JITTER * randomness)
    return now + max(delay, min(retry_after or 0.0, LONGEST_WAIT))


def check_events(events: Any, known: Sequence[str] = EVENTS, pointer: str = "/webhook_events") -> tuple[str, ...]:
    name = pointer.rpartition("/")[2]
    if isinstance(events, str) or not isinstance(events, Sequence) or not events:
        raise InvalidInput(f"{name} must be a list of events; valid are: {', '.join(known)}", pointer=pointer)
    for event in events:
        if event not in known:
            raise InvalidInput(f"{str(event)[:50]!r} is no event; valid are: {', '.join(known)}", pointer=pointer)
    return tuple(event for event in known if event in events)


def check_url(url: Any, *, allow_http: bool, allow_private: bool, pointer: str = "/webhook_url") -> str:
    """Return the URL if requests may go there, as far as that can be told without resolving its host."""
    name = pointer.rpartition("/")[2]
    if not isinstance(url, str) or len(url) > MAX_URL:
        raise InvalidInput(f"{name} must be a URL of at most {MAX_URL} characters", pointer=pointer)
    problem = url_problem(url, allow_http=allow_http, allow_private=allow_private)
    if problem is not None:
        raise InvalidInput(f"{name} {problem}", pointer=pointer)
    return url


def url_problem(url: str, *, allow_http: bool, allow_private: bool) -> str | None:
    if not url.isascii() or not url.isprintable() or any(character in url for character in ' \\"<>^`{|}'):
        return "must be a URL in ASCII; encode other characters"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not a valid URL"
    if parts.scheme not in ("https", "http") or not host or port == 0:
        return "must begin with https:// and a host"
    if parts.scheme == "http" and not allow_http:
        return "must begin with https://"
    if "@" in parts.netloc:
        return "must not have a user or password; receivers verify the signature"
    if allow_private:
        return None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        local = host.rstrip(".").lower()
        private = "." not in local or local.endswith((".localhost", ".local", ".internal"))
        return "must have a public host" if private and not local.isdigit() and not local.startswith("0x") else None
    return None if is_public(address) else "must have a public host"


class Addresses(Protocol):
    """Where webhooks may be sent, a part of the settings."""

    allow_http: bool
    allow_private: bool


def check_webhook(url: Any, events: Any, allowed: Addresses, known: Sequence[str]) -> JobWebhook:
    """Return the webhook of a job or batch, or raise an error that names the invalid field."""
    if url is None:
        raise InvalidInput("webhook_events needs a webhook_url", pointer="/webhook_events")
    webhook = url if isinstance(url, JobWebhook) else JobWebhook(url)
    check_url(webhook.url, allow_http=allowed.allow_http, allow_private=allowed.allow_private)
    if events is not None:
        return replace(webhook, events=check_events(events, known))
    if isinstance(url, JobWebhook):
        return webhook
    return replace(webhook, events=(BATCH_ENDED,) if BATCH_ENDED in known else ENDS)


def check_secret(secret: str) -> str:
    """Return a secret of Standard Webhooks; raise ValueError if it is not one. Verifiers of Replicate split it at `_`,
    so its base64 must be the standard one."""
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError(f"must be {SECRET_PREFIX} and the base64 of 24 to 64 random bytes")
    return secret


def secret_text(random: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(random).decode()
