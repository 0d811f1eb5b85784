"""What a caller asks for, checked whole before anything is stored."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from operator import attrgetter
from typing import Any

import orjson
from uuid_utils import uuid7

from fairlead.domain import transitions
from fairlead.domain.config import Config, known
from fairlead.domain.job import Job, Priority, PrioritySource
from fairlead.domain.records import record
from fairlead.domain.transitions import Submit
from fairlead.domain.wire import NotJson, to_json
from fairlead.errors import InvalidInput, TooLarge, UnknownFeature
from fairlead.runtime import destinations
from fairlead.runtime.moments import moment

ANONYMOUS = "anonymous"
MAX_USER_ID = 255
MAX_KEY = 255
MAX_METADATA = 16384
MAX_DELAY = 366 * 86400.0
MAX_COST = 1_000_000.0
_GIVEN, _DEFAULT = PrioritySource.GIVEN.value, PrioritySource.DEFAULT.value
_after_names = attrgetter(*(field.name for field in fields(Job)[3:]))
"""Of a job, what comes after id, feature_name and user_id."""
_INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JSON_TYPES = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


@record
class Submission:
    """One job, as `POST /api/v1/jobs` and `app.submit` take it.

    `scheduled_at` and `deadline` are moments (a datetime, or ISO 8601 text); `delay` and a numeric `deadline` are
    seconds from now. `region` is where the first call goes, and retries may go elsewhere; `allowed_regions` are never
    left.
    """

    feature_name: str
    input_data: Any = None
    user_id: str = ANONYMOUS
    priority: str | None = None
    scheduled_at: datetime | str | None = None
    delay: float | None = None
    deadline: datetime | str | float | None = None
    cost: float | None = None
    metadata: Mapping[str, Any] | None = None
    region: str | None = None
    allowed_regions: Sequence[str] | None = None

    @property
    def plain(self) -> bool:
        """Nothing is said of when and where."""
        return (
            self.scheduled_at is None
            and self.delay is None
            and self.deadline is None
            and self.cost is None
            and self.region is None
            and self.allowed_regions is None
            and (self.priority is None or type(self.priority) is str)
        )


def check(
    wanted: Submission,
    config: Config,
    *,
    now: float,
    idempotency_key: str | None = None,
    body_hash: str | None = None,
    turn: bool = False,
) -> Submit:
    """The transition that stores this job, or an error that names the field. `turn`: its caller does the work."""
    return Checks(config, now=now, turn=turn).submit_of(wanted, idempotency_key=idempotency_key, body_hash=body_hash)


class Checks:
    """Of all that is submitted at one moment: what the jobs of a bulk have in common is checked once."""

    def __init__(self, config: Config, *, now: float, turn: bool = False) -> None:
        self._config = config
        self._now = now
        self._turn = turn
        self._plain: dict[tuple[str, str | None], tuple[Any, ...]] = {}

    def submit_of(
        self, wanted: Submission, *, idempotency_key: str | None = None, body_hash: str | None = None
    ) -> Submit:
        server = self._config.server
        user_id = check_text(wanted.user_id, "user_id", MAX_USER_ID)
        job = self._job_of(wanted, user_id)
        input_json = _json({} if wanted.input_data is None else wanted.input_data, "input_data")
        if len(input_json) > server.max_body:
            raise TooLarge(f"input_data is over {server.max_body} bytes", pointer="/input_data")
        metadata_json = None if wanted.metadata is None else _json(wanted.metadata, "metadata")
        if metadata_json is not None and len(metadata_json) > MAX_METADATA:
            raise InvalidInput(f"metadata is over {MAX_METADATA} bytes", pointer="/metadata")
        if idempotency_key is not None:
            check_text(idempotency_key, "Idempotency-Key", MAX_KEY)
            body_hash = body_hash or fingerprint(wanted, input_json, metadata_json)
        return Submit(job, input_json, metadata_json, idempotency_key, body_hash, server.max_waiting_per_user)

    def _job_of(self, wanted: Submission, user_id: str) -> Job:
        """Only what is plain is remembered: whether all the rest is the same takes as long to see as to check it."""
        if not (wanted.plain and type(wanted.feature_name) is str):
            return self._new_job(wanted, user_id)
        name = wanted.feature_name, wanted.priority
        rest = self._plain.get(name)
        if rest:
            return Job(str(uuid7()), wanted.feature_name, user_id, *rest)
        job = self._new_job(wanted, user_id)
        self._plain[name] = () if rest is None else _after_names(job)  # what does not come again is not taken apart
        return job

    def _new_job(self, wanted: Submission, user_id: str) -> Job:
        config, now = self._config, self._now
        steps = self._steps_of(wanted.feature_name)
        priority = _priority(wanted.priority)
        due_at = _due(wanted, now)
        deadline_at = _deadline(wanted.deadline, now, due_at)
        cost = _number(wanted.cost, "cost", MAX_COST, positive=True)
        destination = destinations.check(wanted.region, wanted.allowed_regions, steps, config)
        first = transitions.first_state(
            steps[0],
            now=now,
            due_at=due_at,
            deadline_at=deadline_at,
            waits=config.wait_timeouts,
            spill_after=None if destination.region_step else destination.spill_after,
        )
        return Job(
            id=str(uuid7()),
            feature_name=wanted.feature_name,
            user_id=user_id,
            steps=steps,
            priority=priority,
            original_priority=priority,
            status=first.status,
            created_at=now,
            queued_at=first.queued_at,
            waiting_since=first.queued_at,
            scheduled_at=due_at,
            timer_at=first.timer_at,
            deadline_at=deadline_at,
            cost=cost,
            region=destination.region,
            region_step=destination.region_step,
            spill_after=destination.spill_after,
            allowed_regions=destination.allowed_regions,
            priority_source=_DEFAULT if wanted.priority is None else _GIVEN,
        )

    def _steps_of(self, feature_name: Any) -> tuple[str, ...]:
        config = self._config
        steps = config.steps_of(check_text(feature_name, "feature_name", 63))
        if steps is None:
            raise UnknownFeature(
                f"no pipeline or service is called {feature_name!r}; " + known({**config.pipelines, **config.services}),
                pointer="/feature_name",
            )
        if not self._turn and config.turns_only and (idle := config.turns_only.intersection(steps)):
            raise UnknownFeature(
                f"nothing executes {', '.join(sorted(idle))}: it is for turns, whose callers do the work themselves",
                pointer="/feature_name",
            )
        return steps


def fingerprint(wanted: Submission, input_json: str, metadata_json: str | None) -> str:
    """Two submissions with the same key must be the same request."""
    said: tuple[Any, ...] = (
        wanted.feature_name,
        wanted.user_id,
        wanted.priority,
        str(wanted.scheduled_at),
        wanted.delay,
        str(wanted.deadline),
        wanted.cost,
        input_json,
        metadata_json,
    )
    if wanted.region is not None or wanted.allowed_regions is not None:
        # Only then: keys that were seen before there were regions still fit.
        said = (*said, wanted.region, None if wanted.allowed_regions is None else sorted(wanted.allowed_regions))
    return hashlib.sha256(orjson.dumps(said)).hexdigest()


def check_text(value: Any, field: str, longest: int) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be text, not {_type(value)}", pointer=f"/{field}")
    if not value or value.isspace():
        raise InvalidInput(f"{field} must not be {'blank' if value else 'empty'}", pointer=f"/{field}")
    if len(value) > longest:
        raise InvalidInput(f"{field} is longer than {longest} characters", pointer=f"/{field}")
    # Printable ASCII needs no look at every character's category: nearly every id is.
    if not (value.isascii() and value.isprintable()) and any(
        unicodedata.category(character) in _INVISIBLE for character in value
    ):
        raise InvalidInput(f"{field} contains control characters, or others that cannot be seen", pointer=f"/{field}")
    return value


def _type(value: Any) -> str:
    """As JSON calls it."""
    return _JSON_TYPES.get(type(value), type(value).__name__)


def _priority(value: str | None) -> Priority:
    if value is None:
        return Priority.MEDIUM
    if not isinstance(value, str):
        raise InvalidInput(f"priority must be high, medium or low, not {_type(value)}", pointer="/priority")
    try:
        return Priority(value)
    except ValueError:
        raise InvalidInput(f"priority must be high, medium or low, not {value!r}", pointer="/priority") from None


def _number(value: Any, field: str, most: float, *, positive: bool = False) -> float | None:
    if value is None:
        return None
    # An integer is finite, and may be too large for isfinite.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidInput(f"{field} must be a number of seconds", pointer=f"/{field}")
    if value < 0 or (positive and value == 0) or value > most:
        least = "more than 0" if positive else "0 or more"
        raise InvalidInput(f"{field} must be {least} and at most {_span(most)}", pointer=f"/{field}")
    return float(value)


def _span(seconds: float) -> str:
    return f"{seconds / 86400:.0f} days" if seconds % 86400 == 0 else f"{seconds:.0f} seconds"


def _due(wanted: Submission, now: float) -> float | None:
    if wanted.scheduled_at is not None and wanted.delay is not None:
        raise InvalidInput("give scheduled_at or delay, not both", pointer="/delay")
    delay = _number(wanted.delay, "delay", MAX_DELAY)
    if delay is not None:
        return now + delay if delay else None
    if wanted.scheduled_at is None:
        return None
    due_at = moment(wanted.scheduled_at, "scheduled_at")
    if abs(due_at - now) > MAX_DELAY:
        raise InvalidInput(f"scheduled_at is more than {_span(MAX_DELAY)} away", pointer="/scheduled_at")
    return due_at


def _deadline(value: datetime | str | float | None, now: float, due_at: float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime | str):
        deadline_at = moment(value, "deadline")
        if deadline_at > now + 2 * MAX_DELAY:
            raise InvalidInput(f"deadline is more than {_span(2 * MAX_DELAY)} away", pointer="/deadline")
    else:
        deadline_at = now + (_number(value, "deadline", 2 * MAX_DELAY, positive=True) or 0.0)
    if deadline_at <= max(now, due_at or now):
        raise InvalidInput("deadline must be after now and after the job is due", pointer="/deadline")
    return deadline_at


def _json(value: Any, field: str) -> str:
    if type(value) is not dict and not isinstance(value, Mapping):  # an abstract class takes its time to say yes
        raise InvalidInput(f"{field} must be a JSON object", pointer=f"/{field}")
    try:
        return to_json(value)
    except NotJson as error:
        raise InvalidInput(f"{field} is not JSON: {error}", pointer=f"/{field}") from None
