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


async def read_or_submit(request: Request, call: FrontCall) -> tuple[Reading, dict[str, str]]:
    """Join the job of a request that the client has sent before, or submit a new one. Returns the reading, and the
    headers of the rate limit. Raises BadRequest."""
    app = fairlead_of(request)
    joined = await app.fronts.join(call.identity) if call.retried else None
    if joined is not None:
        return joined, {}
    service = await app.models.service_for(call.model)
    if call.request.path == openai.RESPONSES and app.config.services[service].translates_responses:
        chat_request(openai.json_object(call.request.body) or {})  # refuses at once what cannot be translated
    reading = await app.fronts.new_reading(call.identity)
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
        most = app.config.server.max_body
        raise TooLarge(f"the body is over {most} bytes when it is stored as JSON (server.max_body)") from error
    except IdempotencyMismatch:
        # A request with the same idempotency key was accepted at the same moment.
        joined = await app.fronts.join(call.identity)
        if joined is None:
            raise
        return joined, {}
    reading.job_id = receipts[0].job_id
    return reading, headers
