"""How many jobs a user may submit in a minute: GCRA, a leaky bucket that keeps one number per user.

It is kept in this process's memory: with several gateways, each admits so many. It holds back mistakes and haste; what
bounds a user over all processes is `server.max_waiting_per_user`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from fairlead.gateway.problems import RateLimited
from fairlead.runtime.submission import MAX_USER_ID, Submission

WINDOW_S = 60
SWEEP_FROM = 1024


class SubmitRate:
    """A user's number is the moment from which on nothing of it counts any more: it moves on by a job's share of the
    minute with every job, and may not be more than a minute away."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota = per_minute
        self._share = WINDOW_S / per_minute
        self._clock = clock
        self._free_at: dict[str, float] = {}
        self._sweep_at = SWEEP_FROM
        self._policy = f'"user";q={per_minute};w={WINDOW_S}'

    def take(self, jobs: Sequence[Submission], *, anyway: bool = False) -> dict[str, str]:
        """Counts them, all or none; returns the answer's headers. Raises RateLimited, unless they are to be counted
        `anyway`.

        More jobs of one user than a minute admits are taken together once nothing else counts; the user then waits as
        long as they would have taken one by one.
        """
        now = self._clock()
        wanted = _by_user(jobs)
        if not wanted:
            return {}
        used = {user: max(self._free_at.get(user, now), now) - now for user in wanted}
        over = max(used[user] + min(count, self._quota) * self._share - WINDOW_S for user, count in wanted.items())
        if over > 1e-6 and not anyway:
            raise RateLimited(
                f"more than {self._quota} jobs in a minute (server.submits_per_minute)",
                retry_after=over,
                headers=self._headers(max(used.values())),
            )
        for user, count in wanted.items():
            used[user] += count * self._share
            self._free_at[user] = now + used[user]
        if len(self._free_at) >= self._sweep_at:
            self._sweep(now)
        return self._headers(max(used.values()))

    def give_back(self, jobs: Sequence[Submission]) -> dict[str, str]:
        """What was taken for jobs that were there already; returns the answer's headers."""
        now, used = self._clock(), [0.0]
        for user, count in _by_user(jobs).items():
            self._free_at[user] = self._free_at.get(user, now) - count * self._share
            used.append(self._free_at[user] - now)
        return self._headers(max(used))

    def _headers(self, used: float) -> dict[str, str]:
        """Those of the user who has least left (draft-ietf-httpapi-ratelimit-headers-10)."""
        left = max(0, math.floor((WINDOW_S - used) / self._share + 1e-6))
        return {"RateLimit-Policy": self._policy, "RateLimit": f'"user";r={left};t={math.ceil(used)}'}

    def _sweep(self, now: float) -> None:
        self._free_at = {user: free_at for user, free_at in self._free_at.items() if free_at > now}
        self._sweep_at = max(SWEEP_FROM, 2 * len(self._free_at))


def _by_user(jobs: Sequence[Submission]) -> Counter[str]:
    """Whoever is no user will be refused for that."""
    return Counter(job.user_id for job in jobs if isinstance(job.user_id, str) and len(job.user_id) <= MAX_USER_ID)
