"""Reads a request of fal's clients: its app, its input, its user, and the headers that say how to queue it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from fairlead.app.handle import Receipt
from fairlead.domain.access import Role
from fairlead.domain.config import Config
from fairlead.domain.submission import Submission
from fairlead.domain.webhook_shapes import FAL_URL
from fairlead.domain.webhooks import JobWebhook, Shape
from fairlead.errors import InvalidInput
from fairlead.gateway import request_parsing
from fairlead.gateway.fronts import apps
from fairlead.gateway.fronts.callers import user_of
from fairlead.gateway.fronts.fal.errors import PREFIX
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.problems import NoSuchRoute
from fairlead.gateway.rate_limit import accept_jobs
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of

SETTING = "fronts.fal.apps"
NAMESPACES = ("workflows/", "comfy/")
PRIORITY_HEADER = "X-Fal-Queue-Priority"
START_HEADERS = ("X-Fal-Request-Start-Timeout", "X-Fal-Request-Timeout")
WEBHOOK = "fal_webhook"
LONGEST_START = 31 * 86400.0
_REST = ("tokens", "storage/", "proxy")
"""Paths that are no apps."""


@dataclass(frozen=True, slots=True)
class FalCall:
    """A request for an app. `start_within` is the time until which it must have started, in seconds."""

    app: str
    submission: Submission
    start_within: float | None


def feature_of(config: Config, app: str) -> str | None:
    """The pipeline or service of an app. Its namespace counts only if the table has the whole name."""
    table = config.fronts.fal.apps
    short = next((app.removeprefix(each) for each in NAMESPACES if app.startswith(each)), app)
    return apps.feature_of(config, table, app) or apps.feature_of(config, table, short)


async def read_call(request: Request, app: str, feature: str | None) -> FalCall:
    config = fairlead_of(request).config
    if feature is None:
        if app.startswith(_REST):
            raise NoSuchRoute(
                "realtime connections and tokens for browsers are not supported; use subscribe, submit or stream"
            )
        raise apps.unknown_app(config, config.fronts.fal.apps, app, SETTING)
    headers = headers_of(request.scope)
    webhook = request.query_params.get(WEBHOOK)
    submission = Submission(
        feature,
        await _input(request),
        user_of(caller_of(request), headers),
        priority=_priority(headers),
        metadata={"app": app[:255]} | ({} if webhook is None else {FAL_URL: base_of(request)}),
        webhook_url=None if webhook is None else JobWebhook(webhook, shape=Shape.FAL),
    )
    return FalCall(app, submission, _start_within(headers))


async def submit(request: Request, call: FalCall) -> tuple[Receipt, dict[str, str]]:
    """Submit the job of a request. Returns its receipt and the headers of the rate limit."""
    lowers_only = caller_of(request).role is Role.USER
    receipts, headers = await accept_jobs(
        request, [call.submission], None, lowers_only=lowers_only, start_within=call.start_within
    )
    return receipts[0], headers


async def _input(request: Request) -> Any:
    raw = await request_parsing.read(request)
    if not raw:
        return {}
    request_parsing.require_json(request)
    value = request_parsing.decode(raw)
    if not isinstance(value, dict):
        raise InvalidInput("the input must be a JSON object", pointer="")
    return value


def _priority(headers: dict[bytes, bytes]) -> str | None:
    """The priority of a job. `normal` leaves it to the gateway, so that the header can only lower it."""
    text = headers.get(PRIORITY_HEADER.lower().encode(), b"normal").decode("latin-1").strip().lower()
    if text not in ("normal", "low"):
        raise InvalidInput(f"{PRIORITY_HEADER} must be normal or low", pointer=f"/{PRIORITY_HEADER}")
    return "low" if text == "low" else None


def _start_within(headers: dict[bytes, bytes]) -> float | None:
    for name in START_HEADERS:
        if (given := headers.get(name.lower().encode())) is not None:
            return _seconds(name, given.decode("latin-1"))
    return None


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_START:
        raise InvalidInput(f"{name} must be a number of seconds, up to {LONGEST_START:.0f}", pointer=f"/{name}")
    return seconds


def base_of(request: Request) -> str:
    """The URL of this gateway as its client sees it. The header of a TLS proxy in front of it is believed: the URL is
    only sent back to the client."""
    headers = headers_of(request.scope)
    https = headers.get(b"x-forwarded-proto", b"").strip().lower() == b"https"
    scheme = "https" if https else request.scope["scheme"]
    host = headers.get(b"host", b"localhost").decode("latin-1")
    return f"{scheme}://{host}{request.scope.get('root_path', '')}"


def urls_of(request: Request, app: str, job_id: str) -> dict[str, str]:
    """The URLs of a request. They have the app without its path, as the clients build them."""
    parts = app.split("/")
    short = "/".join(parts[: 3 if f"{parts[0]}/" in NAMESPACES else 2])
    url = f"{base_of(request)}{PREFIX}{short}/requests/{job_id}"
    return {"response_url": url, "status_url": f"{url}/status", "cancel_url": f"{url}/cancel"}
