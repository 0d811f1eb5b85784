"""Submissions and their validation. A submission is validated completely before anything is stored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, TypedDict

import orjson
from uuid_utils import uuid7

from fairlead.domain.config import Config
from fairlead.domain.config_checks import known, spelled
from fairlead.domain.costs import CostError, CostHook, checked_cost
from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.job import Job, Priority, PrioritySource
from fairlead.domain.json_codec import NotJson, to_json
from fairlead.domain.redaction import redacted
from fairlead.domain.transitions import Submit
from fairlead.domain.validation import check_text, json_type, moment, user_text
from fairlead.domain.waiting_timers import first_state
from fairlead.domain.webhooks import ENDPOINTS_ONLY, JOB_EVENTS, JobWebhook, check_webhook
from fairlead.errors import InvalidInput, TooLarge, UnknownFeature

ANONYMOUS = "anonymous"
MAX_USER_ID = 255
MAX_KEY = 255
MAX_METADATA = 16384
MAX_DELAY = 366 * 86400.0
_GIVEN, _DEFAULT = PrioritySource.GIVEN.value, PrioritySource.DEFAULT.value
_after_names = attrgetter(*(field.name for field in fields(Job)[3:]))
"""Reads the fields of a Job after id, feature_name and user_id."""


@fast_dataclass
class Submission:
    """One job, as accepted by `POST /api/v1/jobs` and `app.submit`.

    `scheduled_at` and `deadline` are points in time (a datetime, or ISO 8601 text); `delay` and a numeric `deadline`
    are seconds from now. An integer `user_id` becomes text. The first call goes to `region`, and retries may go to
    other regions. Calls go to `allowed_regions` only. `webhook_url` receives the `webhook_events` of the job, by
    default its end; a front passes a `JobWebhook`, which also has the shape of its requests.
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
    webhook_url: str | JobWebhook | None = None
    webhook_events: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if type(self.user_id) is not str:
            object.__setattr__(self, "user_id", user_text(self.user_id))

    @property
    def plain(self) -> bool:
        """Whether the submission sets no time, cost or region."""
        return (
            self.scheduled_at is None
            and self.delay is None
            and self.deadline is None
            and self.cost is None
            and self.region is None
            and self.allowed_regions is None
            and self.webhook_url is None
            and self.webhook_events is None
            and (self.priority is None or type(self.priority) is str)
        )


class WebhookOptions(TypedDict, total=False):
    """The fields of a submission that name its webhook."""

    webhook_url: str | JobWebhook | None
    webhook_events: Sequence[str] | None


def check(
    submission: Submission,
    config: Config,
    *,
    now: float,
    idempotency_key: str | None = None,
    body_hash: str | None = None,
    turn: bool = False,
    trace: str | None = None,
) -> Submit:
    """Return the transition that stores this job, or raise an error that names the invalid field.

    With `turn`, the submission is a turn: its caller does the work itself.
    """
    return SubmissionChecker(config, now=now, turn=turn, trace=trace).submit_of(
        submission, idempotency_key=idempotency_key, body_hash=body_hash
    )


class SubmissionChecker:
    """Validates the jobs of one request. Values shared by the jobs of a bulk submission are validated once."""

    def __init__(
        self,
        config: Config,
        *,
        now: float,
        turn: bool = False,
        endpoint_users: frozenset[str | None] = frozenset(),
        trace: str | None = None,
    ) -> None:
        """`trace` is the trace that the jobs belong to."""
        self._config = config
        self._now = now
        self._turn = turn
        self._endpoint_users = endpoint_users
        self._trace = trace
        self._plain: dict[tuple[str, str | None, bool], tuple[Any, ...]] = {}

    def submit_of(
        self, submission: Submission, *, idempotency_key: str | None = None, body_hash: str | None = None
    ) -> Submit:
        server = self._config.server
        user_id = check_text(submission.user_id, "user_id", MAX_USER_ID)
        job = self._job_of(submission, user_id)
        input_json = _json({} if submission.input_data is None else submission.input_data, "input_data")
        if len(input_json) > server.max_body:
            raise TooLarge(f"input_data is over {server.max_body} bytes", pointer="/input_data")
        if job.cost is None and not self._turn:
            self._set_costs(job, submission.input_data)  # last, because a hook may change the input
        service = self._config.services[job.service]
        if not self._turn and job.service in self._config.front_services and service.speaks_openai:
            _check_request(submission)
        metadata_json = None if submission.metadata is None else _json(submission.metadata, "metadata")
        if metadata_json is not None and len(metadata_json) > MAX_METADATA:
            raise InvalidInput(f"metadata is over {MAX_METADATA} bytes", pointer="/metadata")
        if idempotency_key is not None:
            check_text(idempotency_key, "Idempotency-Key", MAX_KEY)
            body_hash = body_hash or fingerprint(submission, input_json, metadata_json)
        ordered = service.order == "fifo"
        return Submit(job, input_json, metadata_json, idempotency_key, body_hash, server.max_waiting_per_user, ordered)

    def _job_of(self, submission: Submission, user_id: str) -> Job:
        """Build the job. The validated fields of an earlier plain submission with the same feature and priority are
        reused. Submissions with more fields are always validated, because comparing the fields would take as long."""
        if not (submission.plain and type(submission.feature_name) is str):
            return self._new_job(submission, user_id)
        name = submission.feature_name, submission.priority, self._has_endpoints(user_id)
        rest = self._plain.get(name)
        if rest:
            return Job(str(uuid7()), submission.feature_name, user_id, *rest)
        job = self._new_job(submission, user_id)
        self._plain[name] = () if rest is None else _after_names(job)  # the second such job fills the cache
        return job

    def _set_costs(self, job: Job, params: Any) -> None:
        """Set the costs of the job's steps, if a service computes them from the input. The job is changed in place: no
        other code uses it yet."""
        readers = self._config.cost_readers
        if not readers or readers.keys().isdisjoint(job.steps):
            return
        params = {} if params is None else params
        costs = [_computed(readers[step], step, params) if step in readers else None for step in job.steps]
        if costs.count(None) < len(costs):
            new: Any = job
            new.costs = tuple(costs)

    def _new_job(self, submission: Submission, user_id: str) -> Job:
        config, now = self._config, self._now
        steps = self._steps_of(submission.feature_name)
        priority = _priority(submission.priority)
        timed = submission.scheduled_at is not None or submission.delay is not None
        due_at = _due(submission, now) if timed else None
        deadline_at = None if submission.deadline is None else _deadline(submission.deadline, now, due_at)
        cost = None if submission.cost is None else _stated(submission.cost)
        destination = check_regions(submission.region, submission.allowed_regions, steps, config)
        first = first_state(
            steps[0],
            now=now,
            due_at=due_at,
            deadline_at=deadline_at,
            waits=config.wait_timeouts,
            spill_after=None if destination.region_step else destination.spill_after,
        )
        return Job(
            id=str(uuid7()),
            feature_name=submission.feature_name,
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
            priority_source=_DEFAULT if submission.priority is None else _GIVEN,
            webhook=self._webhook(submission, user_id),
            trace=self._trace,
        )

    def _has_endpoints(self, user_id: str) -> bool:
        users = self._endpoint_users
        return bool(users) and (None in users or user_id in users)

    def _webhook(self, submission: Submission, user_id: str) -> JobWebhook | None:
        endpoints = not self._turn and self._has_endpoints(user_id)
        if submission.webhook_url is None and submission.webhook_events is None:
            return ENDPOINTS_ONLY if endpoints else None
        url, events, config = submission.webhook_url, submission.webhook_events, self._config.webhooks
        return replace(check_webhook(url, events, config, JOB_EVENTS), endpoints=endpoints)

    def _steps_of(self, feature_name: Any) -> tuple[str, ...]:
        config = self._config
        steps = config.steps_of(feature_name) if isinstance(feature_name, str) else None
        if steps is None:
            check_text(feature_name, "feature_name", 63)
            raise UnknownFeature(
                f"no pipeline or service is called {feature_name!r}; " + known({**config.pipelines, **config.services}),
                pointer="/feature_name",
            )
        if not self._turn and config.turns_only and (idle := config.turns_only.intersection(steps)):
            raise UnknownFeature(
                f"{', '.join(sorted(idle))} accepts turns only: their callers do the work, and nothing executes jobs",
                pointer="/feature_name",
            )
        return steps


def fingerprint(submission: Submission, input_json: str, metadata_json: str | None) -> str:
    """The hash of a request. Submissions that repeat an idempotency key must have the same hash."""
    values: tuple[Any, ...] = (
        submission.feature_name,
        submission.user_id,
        submission.priority,
        str(submission.scheduled_at),
        submission.delay,
        str(submission.deadline),
        submission.cost,
        input_json,
        metadata_json,
    )
    if submission.region is not None or submission.allowed_regions is not None:
        # Regions are hashed only if set, so that hashes stored by releases without regions still match.
        values = (
            *values,
            submission.region,
            None if submission.allowed_regions is None else sorted(submission.allowed_regions),
        )
    if submission.webhook_url is not None:
        values = (*values, submission.webhook_url, submission.webhook_events)
    return hashlib.sha256(orjson.dumps(values)).hexdigest()


def _check_request(submission: Submission) -> None:
    """Refuse a job of an OpenAI upstream that the front did not submit. The front's own jobs have all keys of a
    request."""
    given = submission.input_data or {}
    if "path" not in given or "content_type" not in given:
        raise InvalidInput(
            f"{submission.feature_name} speaks OpenAI's protocol: send requests to /v1 of the gateway",
            pointer="/input_data",
        )


def _priority(value: str | None) -> Priority:
    if value is None:
        return Priority.MEDIUM
    if not isinstance(value, str):
        raise InvalidInput(f"priority must be high, medium or low, not {json_type(value)}", pointer="/priority")
    try:
        return Priority(value)
    except ValueError:
        raise InvalidInput(f"priority must be high, medium or low, not {value!r}", pointer="/priority") from None


def _number(value: Any, field: str, most: float, *, positive: bool = False) -> float | None:
    if value is None:
        return None
    # An integer is always finite and may be too large for isfinite.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidInput(f"{field} must be a number of seconds", pointer=f"/{field}")
    if value < 0 or (positive and value == 0) or value > most:
        least = "more than 0" if positive else "0 or more"
        raise InvalidInput(f"{field} must be {least} and at most {_span(most)}", pointer=f"/{field}")
    return float(value)


def _stated(cost: Any) -> float:
    try:
        return checked_cost(cost)
    except CostError as error:
        raise InvalidInput(str(error), pointer="/cost") from None


def _computed(reader: CostHook, step: str, params: Any) -> float | None:
    """The cost of a step that its service computes from the input."""
    try:
        cost = reader(params)
        return None if cost is None else checked_cost(cost)
    except CostError as error:
        message = str(error)
    except Exception as error:  # a hook of the application
        message = redacted(f"{type(error).__name__}: {error}")
    raise InvalidInput(f"the cost of {step} cannot be computed: {message}", pointer="/input_data")


def _span(seconds: float) -> str:
    return f"{seconds / 86400:.0f} days" if seconds % 86400 == 0 else f"{seconds:.0f} seconds"


def _due(submission: Submission, now: float) -> float | None:
    if submission.scheduled_at is not None and submission.delay is not None:
        raise InvalidInput("give scheduled_at or delay, not both", pointer="/delay")
    delay = _number(submission.delay, "delay", MAX_DELAY)
    if delay is not None:
        return now + delay if delay else None
    if submission.scheduled_at is None:
        return None
    due_at = moment(submission.scheduled_at, "scheduled_at")
    if due_at > now + MAX_DELAY:
        raise InvalidInput(f"scheduled_at is more than {_span(MAX_DELAY)} away", pointer="/scheduled_at")
    return due_at


def _deadline(value: datetime | str | float, now: float, due_at: float | None) -> float:
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
    if type(value) is not dict and not isinstance(value, Mapping):  # the exact type first: isinstance on an ABC is slow
        raise InvalidInput(f"{field} must be a JSON object", pointer=f"/{field}")
    try:
        return to_json(value)
    except NotJson as error:
        raise InvalidInput(f"{field} is not JSON: {error}", pointer=f"/{field}") from None


MAX_ALLOWED = 32
MAX_REGION_NAME = 63


@dataclass(frozen=True, slots=True)
class Destination:
    """The region fields of a `Job`."""

    region: str | None = None
    region_step: int = 0
    spill_after: float | None = None
    allowed_regions: tuple[str, ...] | None = None


ANYWHERE = Destination()


def check_regions(region: Any, allowed: Any, steps: Sequence[str], config: Config) -> Destination:
    """Return the region fields of the job, or raise an error that names the invalid field. The region fields have no
    effect on steps of services without regions."""
    if region is None and allowed is None:
        return ANYWHERE
    declared = {name: None for step in steps for name in config.services[step].regions}
    if region is not None:
        region = spelled(check_text(region, "region", MAX_REGION_NAME), declared)
    permitted = None if allowed is None else _region_names(allowed, declared)
    if region is not None and permitted is not None and region not in permitted:
        raise InvalidInput(f"region {region!r} is not among allowed_regions: {', '.join(permitted)}", pointer="/region")
    regional = [(index, step) for index, step in enumerate(steps) if config.services[step].regions]
    if permitted is not None:
        if not regional:
            raise InvalidInput(
                "none of its services has regions, so allowed_regions cannot be enforced",
                pointer="/allowed_regions",
            )
        for _, step in regional:
            _can_be_served(permitted, step, config)
        _are_known(permitted, declared)
    if region is None or not regional:
        return Destination(region, allowed_regions=permitted)
    first, step = regional[0]
    service = config.services[step]
    if region not in service.regions:
        raise InvalidInput(f"{step} has no region {region!r}; {known(service.regions)}", pointer="/region")
    return Destination(region, first, service.spill_after, permitted)


def _region_names(allowed: Any, declared: Collection[str]) -> tuple[str, ...]:
    """The allowed regions as the configuration writes them, sorted and without duplicates."""
    if isinstance(allowed, str) or not isinstance(allowed, Sequence) or not all(isinstance(n, str) for n in allowed):
        raise InvalidInput("allowed_regions must be a list of region names", pointer="/allowed_regions")
    if not 1 <= len(allowed) <= MAX_ALLOWED:
        raise InvalidInput(f"allowed_regions must name 1 to {MAX_ALLOWED} regions", pointer="/allowed_regions")
    for name in allowed:
        check_text(name, "allowed_regions", MAX_REGION_NAME)
    return tuple(sorted({spelled(name, declared) for name in allowed}))


def _can_be_served(permitted: Sequence[str], step: str, config: Config) -> None:
    """Raise an error if the service of this step has none of the allowed regions: the step could never run."""
    regions = config.services[step].regions
    if not any(region in regions for region in permitted):
        raise InvalidInput(
            f"{step} has none of the regions {', '.join(permitted)}; {known(regions)}", pointer="/allowed_regions"
        )


def _are_known(permitted: Sequence[str], declared: Collection[str]) -> None:
    if declared and (unknown := [region for region in permitted if region not in declared]):
        raise InvalidInput(f"no step has the region {unknown[0]!r}; {known(declared)}", pointer="/allowed_regions")
