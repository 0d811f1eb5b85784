"""Which Celery task carries out which step, kept in Redis for as long as somebody may ask.

When a Fairlead worker is lost, its Celery task goes on. Whoever takes the job up again finds that task here and waits
for it, instead of having the work done twice. Needs a result backend in Redis; with another one nothing is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

PREFIX = "fairlead-celery:"
SLACK = 60.0
_GIVE_UP = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


@dataclass(frozen=True, slots=True)
class Errand:
    """A step (`key`, the same for all its attempts) and its task. `owner` is the call that waits for it now."""

    key: str
    task_id: str = field(default_factory=lambda: str(uuid4()))
    owner: str = field(default_factory=lambda: uuid4().hex)
    taken_over: bool = False

    @property
    def text(self) -> str:
        return f"{self.task_id} {self.owner}"


class Errands:
    """Blocks: for a thread."""

    def __init__(self, app: Any) -> None:
        from celery.backends.redis import RedisBackend

        self._backend = app.backend if isinstance(app.backend, RedisBackend) else None
        self._kept_for = _seconds(app.conf.result_expires)

    def of(self, key: str) -> Errand:
        """The one that is under way, taken over from whoever waited for it; or a new one, of which nobody knows yet."""
        if self._backend is not None and (found := self._backend.client.get(PREFIX + key)):
            errand = Errand(key, found.decode().partition(" ")[0], taken_over=True)
            self._backend.client.set(PREFIX + key, errand.text, keepttl=True, xx=True)
            return errand
        return Errand(key)

    def keep(self, errand: Errand, timeout: float) -> None:
        """Not longer than Celery keeps the result: an errand without one would be waited for in vain."""
        if self._backend is not None:
            seconds = 2 * timeout + SLACK
            if self._kept_for is not None:
                seconds = min(seconds, self._kept_for)
            self._backend.client.set(PREFIX + errand.key, errand.text, px=max(1, int(seconds * 1000)))

    def give_up(self, errand: Errand) -> bool:
        """Forget it, so that the next attempt is a task of its own. False: somebody else has taken it over."""
        if self._backend is None:
            return True
        client = self._backend.client
        return bool(client.eval(_GIVE_UP, 1, PREFIX + errand.key, errand.text)) or not client.exists(
            PREFIX + errand.key
        )


def _seconds(said: Any) -> float | None:
    """Celery takes seconds or a timedelta; nothing or zero is for ever."""
    seconds = said.total_seconds() if hasattr(said, "total_seconds") else float(said or 0)
    return seconds or None
