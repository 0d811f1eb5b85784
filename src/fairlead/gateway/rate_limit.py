"""The rate limit per user on submitting and re-running jobs. It uses GCRA, a form of leaky bucket that keeps one number
per user.

The numbers are in the memory of this process, so each gateway applies the limit by itself. The limit protects against
mistakes; `server.max_waiting_per_user` limits a user over all processes.

A repeated submit with the same `Idempotency-Key` creates no job, so it does not count, and it is answered even if the
limit is reached.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from fairlead.app.handle import Receipt
from fairlead.domain.submission import MAX_USER_ID, Submission
from fairlead.errors import RequestError
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.problems import RATE_HEADERS, RateLimited, budget_headers
from fairlead.gateway.request_parsing import trace_of
from fairlead.gateway.responses import fairlead_of

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

WINDOW_S = 60
SWEEP_FROM = 1024
MAX_NAMES = 10_000


class SubmitRate:
    """The rate limit on jobs per user.

    For each user it stores the time at which the user's bucket will be empty. Each job moves this time forward by a
    minute divided by the limit. A job that would move it more than a minute into the future is refused.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota = per_minute
        self._share = WINDOW_S / per_minute
        self._clock = clock
        self._free_at: dict[str, float] = {}
        self._sweep_at = SWEEP_FROM
        self._policy = f'"user";q={per_minute};w={WINDOW_S}'

    def take(self, jobs: Sequence[Submission], *, anyway: bool = False) -> dict[str, str]:
        """Count the jobs, all or none of them, and return the response headers. Raises RateLimited if the limit is
        exceeded, unless `anyway` is set.

        More jobs at once than the limit per minute are accepted if none of the user's earlier jobs counts any more. The
        user's next submit then has to wait as long as if the jobs had been submitted one by one.
        """
        now = self._clock()
        counts = _by_user(jobs)
        if not counts:
            return {}
        used = {user: max(self._free_at.get(user, now), now) - now for user in counts}
        over = max(used[user] + min(count, self._quota) * self._share - WINDOW_S for user, count in counts.items())
        if over > 1e-6 and not anyway:
            raise RateLimited(
                f"more than {self._quota} jobs per minute (server.submits_per_minute)",
                retry_after=over,
                headers=self._headers(max(used.values())),
            )
        for user, count in counts.items():
            used[user] += count * self._share
            self._free_at[user] = now + used[user]
        if len(self._free_at) >= self._sweep_at:
            self._sweep(now)
        return self._headers(max(used.values()))

    def give_back(self, jobs: Sequence[Submission]) -> dict[str, str]:
        """Undo the count of jobs that were not created because they existed already. Returns the response headers."""
        now, used = self._clock(), [0.0]
        for user, count in _by_user(jobs).items():
            self._free_at[user] = self._free_at.get(user, now) - count * self._share
            used.append(self._free_at[user] - now)
        return self._headers(max(used))

    def _headers(self, used: float) -> dict[str, str]:
        """Return the rate limit headers (draft-ietf-httpapi-ratelimit-headers-10). `used` is how many seconds of the
        window are used up, for the user who has used the most."""
        left = max(0, math.floor((WINDOW_S - used) / self._share + 1e-6))
        return {"RateLimit-Policy": self._policy, "RateLimit": f'"user";r={left};t={math.ceil(used)}'}

    def _sweep(self, now: float) -> None:
        self._free_at = {user: free_at for user, free_at in self._free_at.items() if free_at > now}
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._free_at))


class Attempts:
    """A rate limit on attempts per minute, counted for each name (an address or a key id) in the memory of this
    process. When more than `most` names are counted, the one that was counted longest ago is forgotten."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic, most: int = MAX_NAMES) -> None:
        self._share = WINDOW_S / per_minute
        self._clock = clock
        self._most = most
        self._free_at: dict[str, float] = {}

    def take(self, name: str, message: str) -> None:
        """Count one attempt. Raises RateLimited if it exceeds the limit."""
        now = self._clock()
        used = max(self._free_at.pop(name, now), now) - now + self._share
        over = used - WINDOW_S
        if over > 1e-6:
            self._free_at[name] = now + used - self._share
            raise RateLimited(message, retry_after=over, headers={})
        if len(self._free_at) >= self._most:
            del self._free_at[next(iter(self._free_at))]
        self._free_at[name] = now + used

    def give_back(self, name: str) -> None:
        if name in self._free_at:
            self._free_at[name] -= self._share

    def __len__(self) -> int:
        return len(self._free_at)


def _by_user(jobs: Sequence[Submission]) -> Counter[str]:
    """Return the number of jobs of each user. Jobs with an invalid user are left out; the application refuses them
    later."""
    return Counter(job.user_id for job in jobs if isinstance(job.user_id, str) and len(job.user_id) <= MAX_USER_ID)


async def count_rerun(request: Request, job_id: str) -> dict[str, str]:
    """Count the re-run of a job like a submit, and return the response headers. Raises RateLimited."""
    rate: SubmitRate | None = request.app.state.submit_rate
    if rate is None:
        return {}
    user_id = caller_of(request).user_id or await fairlead_of(request).owner_of(job_id)
    return {} if user_id is None else count_jobs(request, user_id, 1)


def count_jobs(request: Request, user_id: str, number: int) -> dict[str, str]:
    """Count `number` jobs of a user toward the rate limit. Returns the rate limit headers, and adds them to an error
    response if the request fails later. Raises RateLimited."""
    rate: SubmitRate | None = request.app.state.submit_rate
    if rate is None:
        return {}
    headers = request.scope[RATE_HEADERS] = rate.take([Submission("", None, user_id)] * number)
    return dict(headers)


def give_back_jobs(request: Request, user_id: str, number: int) -> dict[str, str]:
    """Undo the count of jobs that were not created, and return the response headers."""
    rate: SubmitRate | None = request.app.state.submit_rate
    if rate is None or not number:
        return {}
    headers = request.scope[RATE_HEADERS] = rate.give_back([Submission("", None, user_id)] * number)
    return dict(headers)


async def accept_jobs(
    request: Request, jobs: Sequence[Submission], first_key: str | None, **options: Any
) -> tuple[list[Receipt], dict[str, str]]:
    """Submit jobs with `Jobs.accept` within the rate limit. Returns the receipts, and the headers of the rate limit
    and of budgets.

    `first_key` is the idempotency key of the first job. If a job with this key exists, the whole bulk was submitted
    before, since a bulk is atomic. The repeated request is then accepted even if the limit is reached.
    """
    app = fairlead_of(request)
    rate: SubmitRate | None = request.app.state.submit_rate
    options["trace"] = trace_of(request)
    if rate is None:
        receipts = await app.jobs.accept(jobs, **options)
        return receipts, _budget_headers(receipts, app)
    over_limit = False
    try:
        headers = rate.take(jobs)
    except RateLimited:
        if first_key is None or not await app.was_submitted(jobs[0].user_id, first_key):
            raise
        over_limit = True
        headers = rate.take(jobs, anyway=True)
    try:
        receipts = await app.jobs.accept(jobs, **options)
    except RequestError:
        request.scope[RATE_HEADERS] = rate.give_back(jobs) if over_limit else headers
        raise
    if repeated := [job for job, receipt in zip(jobs, receipts, strict=True) if receipt.replayed]:
        headers = rate.give_back(repeated)
    return receipts, headers | _budget_headers(receipts, app)


def _budget_headers(receipts: Sequence[Receipt], app: Fairlead) -> dict[str, str]:
    """The headers that show what is left of a budget. Empty if no budget concerns the jobs."""
    budget = receipts[0].budget if receipts else None
    return {} if budget is None else budget_headers(budget.budget, budget.remaining, budget.window_end, app.now())
