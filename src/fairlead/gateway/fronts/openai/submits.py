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
    if call.retried:
        reading = await fairlead_of(request).fronts.join(call.identity)
        if reading is not None:
            return reading, {}
    return await _submit(request, call)


async def _submit(request: Request, call: FrontCall) -> tuple[Reading, dict[str, str]]:
    app = fairlead_of(request)
    service = await app.models.service_for(call.model)
    if call.request.path == openai.RESPONSES and app.config.services[service].translates_responses:
        chat_request(openai.json_object(call.request.body) or {})  # refuses at once what cannot be translated
    submission = call.submission(service)
    lowers_only = caller_of(request).role is Role.USER
    headers: dict[str, str] = {}

    async def accept(key: str, reader: str) -> str:
        try:
            receipts, rate = await accept_jobs(
                request, [submission], None, idempotency_key=key, body_hash=reader, lowers_only=lowers_only
            )
        except TooLarge as error:
            most = app.config.server.max_body
            raise TooLarge(f"the body is over {most} bytes when it is stored as JSON (server.max_body)") from error
        headers.update(rate)
        return receipts[0].job_id

    try:
        return await app.fronts.submit(call.identity, accept), headers
    except IdempotencyMismatch:
        # A request with the same idempotency key was accepted at the same moment.
        reading = await app.fronts.join(call.identity)
        if reading is None:
            raise
        return reading, headers
