"""Submitting through the rate limit. A submit that is sent again with its `Idempotency-Key` makes no job, so it counts
for nothing, and is answered whatever else its user has sent: it asks what became of the first one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from fairlead.errors import RequestError
from fairlead.gateway.problems import RATE_HEADERS, RateLimited
from fairlead.gateway.rates import SubmitRate
from fairlead.gateway.replies import fairlead_of
from fairlead.handle import Receipt
from fairlead.runtime.submission import Submission


async def accept(
    request: Request, jobs: Sequence[Submission], first_key: str | None, **options: Any
) -> tuple[list[Receipt], dict[str, str]]:
    """What `Fairlead.accept` says, and the answer's headers, which errors have as well. `first_key` is the key of the
    first job: a bulk is there as a whole or not at all."""
    app = fairlead_of(request)
    rate: SubmitRate | None = request.app.state.submit_rate
    if rate is None:
        return await app.accept(jobs, **options), {}
    beyond = False
    try:
        headers = rate.take(jobs)
    except RateLimited:
        if first_key is None or not await app.was_submitted(jobs[0].user_id, first_key):
            raise
        beyond = True
        headers = rate.take(jobs, anyway=True)
    try:
        receipts = await app.accept(jobs, **options)
    except RequestError:
        request.scope[RATE_HEADERS] = rate.give_back(jobs) if beyond else headers
        raise
    if again := [job for job, receipt in zip(jobs, receipts, strict=True) if receipt.replayed]:
        headers = rate.give_back(again)
    return receipts, headers
