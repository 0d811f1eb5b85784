"""Submits the job of a request."""

from __future__ import annotations

from starlette.requests import Request

from fairlead.app.front_requests import Reading
from fairlead.domain import openai
from fairlead.domain.access import Role
from fairlead.domain.chat_requests import chat_request
from fairlead.errors import IdempotencyMismatch, TooLarge
from fairlead.gateway.fronts.openai.requests import FrontCall
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.rate_limit import accept_jobs
from fairlead.gateway.responses import fairlead_of

TRIES = 5
"""How often a request whose idempotency key others use at the same moment tries to join or to submit a job."""


async def read_or_submit(request: Request, call: FrontCall) -> tuple[Reading, dict[str, str]]:
    """Join the job of a request that the client has sent before, or submit a new one. Returns the reading, and the
    headers of the rate limit. Raises BadRequest."""
    app = fairlead_of(request)
    for tries_left in reversed(range(TRIES)):
        reading = await app.fronts.reading_of(call.identity, retried=call.retried)
        if not reading.new:
            break
        service = await app.models.service_for(call.model)
        if call.request.path == openai.RESPONSES and app.config.services[service].translates_responses:
            chat_request(openai.json_object(call.request.body) or {})  # refuses at once what cannot be translated
        try:
            return await _submitted(request, call, reading, service)
        except IdempotencyMismatch:
            # A request with the same idempotency key was accepted at the same moment.
            if not tries_left:
                raise
    return reading, {}


async def _submitted(
    request: Request, call: FrontCall, reading: Reading, service: str
) -> tuple[Reading, dict[str, str]]:
    try:
        receipts, headers = await accept_jobs(
            request,
            [call.submission(service)],
            None,
            idempotency_key=reading.key,
            body_hash=str(reading.readers),
            lowers_only=caller_of(request).role is Role.USER,
        )
    except TooLarge as error:
        most = fairlead_of(request).config.server.max_body
        raise TooLarge(f"the body is over {most} bytes when it is stored as JSON (server.max_body)") from error
    reading.job_id, reading.service = receipts[0].job_id, service
    return reading, headers
