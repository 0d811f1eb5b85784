"""Reads requests for predictions, and submits them as jobs."""

from __future__ import annotations

import hashlib
from functools import partial

import orjson
from starlette.requests import Request

from fairlead.domain import replicate
from fairlead.domain.access import Role
from fairlead.domain.replicate import PREFIX, Mark
from fairlead.domain.submission import Submission
from fairlead.domain.webhooks import ENDS, JobWebhook, Shape
from fairlead.errors import InvalidInput
from fairlead.gateway import models_replicate as models
from fairlead.gateway import request_parsing
from fairlead.gateway.fronts.callers import user_of
from fairlead.gateway.fronts.inputs import check_size, with_references
from fairlead.gateway.fronts.replicate import catalog
from fairlead.gateway.fronts.replicate.catalog import Chosen
from fairlead.gateway.fronts.replicate.predictions import base_of
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.rate_limit import accept_jobs
from fairlead.gateway.request_middleware import headers_of
from fairlead.gateway.responses import fairlead_of

CANCEL_AFTER = "Cancel-After"
OWN_FILES = rf"{PREFIX}/files/"
_POINTERS = {"/webhook_url": "/webhook", "/input_data": "/input", "/$file": "/input"}
"""The fields of a prediction by those of its job, for errors."""
WAIT_MARGIN_S = 0.25
"""The clients stop waiting half a second after the time that they ask for."""


async def create(request: Request, model: str | None) -> tuple[str, dict[str, str]]:
    """Submit a prediction, for a model or for the version that the body names. Returns the id of its job, and the
    headers of the rate limit."""
    small = partial(check_size, max_body=fairlead_of(request).config.server.max_body)
    wanted = await request_parsing.read_model(request, models.PredictionRequest, required=True, check_size=small)
    chosen = _chosen(request, model, wanted)
    caller = caller_of(request)
    user_id = user_of(caller, headers_of(request.scope))
    webhook = _webhook(wanted)
    submission = Submission(
        chosen.feature,
        await with_references(request, wanted.input, user_id, OWN_FILES),
        user_id,
        deadline=_cancel_after(request),
        metadata=Mark(chosen.model, chosen.version, base_of(request)).as_metadata(),
        webhook_url=webhook,
    )
    key = request_parsing.idempotency_key(request)
    options = {} if key is None else {"idempotency_key": key, "body_hash": _hash(chosen, wanted)}
    try:
        receipts, headers = await accept_jobs(
            request, [submission], key, **options, lowers_only=caller.role is Role.USER
        )
    except InvalidInput as error:
        error.pointer = _POINTERS.get(error.pointer or "", error.pointer)
        raise
    return receipts[0].job_id, headers


def _chosen(request: Request, model: str | None, wanted: models.PredictionRequest) -> Chosen:
    config = fairlead_of(request).config
    if model is not None:
        return catalog.of_model(config, model)
    if wanted.version is None:
        raise InvalidInput("version is missing", pointer="/version")
    return catalog.of_version(config, wanted.version)


def _hash(chosen: Chosen, wanted: models.PredictionRequest) -> str | None:
    """The hash of a request. The submission of a repeated one is different, because its files are saved again."""
    webhook = [wanted.webhook, wanted.webhook_events_filter, wanted.webhook_completed]
    try:
        value = orjson.dumps([chosen.feature, wanted.input, webhook], option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None  # nested too deeply for orjson; the application refuses it
    return hashlib.sha256(value).hexdigest()


def _webhook(wanted: models.PredictionRequest) -> JobWebhook | None:
    if wanted.webhook is not None:
        events = replicate.webhook_events(wanted.webhook_events_filter)
        return JobWebhook(wanted.webhook, events, Shape.REPLICATE) if events else None
    if wanted.webhook_completed is not None:
        return JobWebhook(wanted.webhook_completed, ENDS, Shape.REPLICATE)
    return None


def _cancel_after(request: Request) -> float | None:
    given = headers_of(request.scope).get(CANCEL_AFTER.lower().encode())
    return None if given is None else replicate.cancel_after(given.decode("latin-1"))


def wait_of(request: Request) -> float | None:
    """For how long the caller wants to wait for the end, in seconds."""
    seconds = request_parsing.preferred_wait(request, bare=True)
    return None if seconds is None else max(0.0, seconds - WAIT_MARGIN_S)
