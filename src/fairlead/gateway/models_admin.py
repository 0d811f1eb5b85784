"""Request and response models of administration: services, audit, keys, dead letters, doctor."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from fairlead.app.dead_letters import DeadFilters
from fairlead.app.rate_admin import RateState as RateStateView
from fairlead.app.rate_admin import SharedRateState as SharedRateView
from fairlead.app.service_admin import MAX_LIMIT
from fairlead.app.service_admin import ServiceState as ServiceStateView
from fairlead.domain.access import AuditRecord, Key, Role
from fairlead.domain.job import Priority
from fairlead.gateway.derived_models import Shape, example, fields_of
from fairlead.gateway.models import JOB_ID, MOMENT, JobError, Page, PageQuery, Text, UserId
from fairlead.observe.doctor.finding import Finding

KEY_ID = "3f9c0a1b2c3d"


# ---------------------------------------------------------------- services and the audit log


class LimitRequest(Shape):
    model_config = example(limit=3)

    # The application checks the range: its error for 0 suggests pausing.
    limit: StrictInt = Field(
        description="Concurrent calls over all processes, until the override is removed.",
        json_schema_extra={"minimum": 1, "maximum": MAX_LIMIT},
    )


@fields_of(
    ServiceStateView,
    declared_limit='The configured limit; for limit = "auto", the minimum.',
    override_limit="The limit that an operator set; null without an override.",
)
class ServiceState(Shape):
    """A service as stored in the database. Every process applies it within a second."""

    model_config = example(service="image_gen", limit=3, paused=False, declared_limit=1, override_limit=3)


class RateRequest(Shape):
    model_config = example(requests=60, tokens=100000, per=60)

    # The application checks the ranges, with the messages of the configuration.
    requests: StrictInt | None = Field(default=None, description="Calls in any window of `per` seconds.")
    tokens: StrictFloat | None = Field(
        default=None, description="Tokens in any window of `per` seconds; refused if the calls count in another unit."
    )
    units: StrictFloat | None = Field(default=None, description="The same in the `cost_unit` of the service.")
    per: StrictFloat = Field(default=60.0, description="Seconds, 1 to 86400.")


class ServiceRateRequest(RateRequest):
    user: StrictBool = Field(default=False, description="The rate of each user of the service, instead of its own.")
    region: str | None = Field(
        default=None, max_length=63, description="The rate of this region of the service, instead of its own."
    )


@fields_of(
    RateStateView,
    declared_rate="The configured rate of the service.",
    declared_user_rate="The configured rate of each of its users.",
    unit="The unit of `units`, such as tokens.",
    region_rates="The rates of its regions, by name.",
    declared_region_rates="The configured rates of its regions.",
)
class RateState(Shape):
    """The rates of a service as stored in the database. Every process applies them within a second."""

    model_config = example(
        service="llm",
        rate={"requests": 60, "units": 100000.0, "per": 60.0},
        user_rate=None,
        declared_rate=None,
        declared_user_rate=None,
        unit="tokens",
        region_rates={},
        declared_region_rates={},
    )


@fields_of(SharedRateView, declared_rate="The configured rate.", unit="The unit of `units`, such as tokens.")
class SharedRate(Shape):
    """The rate of a pool, a plan or a group as stored in the database. Every process applies it within a second."""

    model_config = example(
        of="pool", name="gpu", rate={"requests": 60, "units": None, "per": 60.0}, declared_rate=None, unit="tokens"
    )


class PriorityRequest(Shape):
    model_config = example(priority="high")

    priority: Priority


class RebuildRequested(Shape):
    model_config = example(service="image_gen", scopes=["service:image_gen"], problem=None)

    service: str
    scopes: list[str] = Field(description="What is rebuilt: the service, or its pool with all services of the pool.")
    problem: str | None = Field(
        description="Why the rebuild cannot start yet, such as a missing leader; null if it can."
    )


class AuditQuery(PageQuery):
    """Filters and paging of the audit log."""

    action: str | None = Field(
        None, min_length=1, max_length=255, description="Only entries with this action, such as `service.pause`."
    )


@fields_of(
    AuditRecord,
    who="Name of the key, followed by its id in brackets.",
    outcome="Null while the action runs, or if its process died during it.",
)
class AuditRow(Shape):
    """One action of an operator."""

    model_config = example(
        id=JOB_ID,
        at=MOMENT,
        who="ops (3f9a0c1b2d4e)",
        action="service.limit",
        target="image_gen",
        details={"limit": 3, "was": 1},
        outcome={"status": "done"},
    )


class AuditPage(Page):
    data: list[AuditRow]


# ---------------------------------------------------------------- keys, tickets and sessions


class TicketRequest(Shape):
    model_config = example(user_id="ada")

    user_id: UserId | None = Field(
        None, description="Restrict the ticket to the jobs of this user. Default: everything that the key may read."
    )


class Ticket(Shape):
    model_config = example(ticket=f"flt_{'0' * 64}_{'0' * 8}", expires_in=60)

    ticket: str
    expires_in: int = Field(description="Seconds.")


class KeyRequest(Shape):
    model_config = example(role="user", user_id="ada", name="ada's laptop")

    role: Role = Field(
        description="admin: everything; viewer: reads what an admin reads and changes nothing; "
        "service: acts for any user; user: reads and changes its own jobs."
    )
    user_id: UserId | None = Field(
        None, description="The user that the key belongs to; required for the role user, invalid for others."
    )
    name: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Shown in lists and in the audit log. Default: the user, or the role.",
    )


@fields_of(Key, omit=("hash",))
class KeyInfo(Shape):
    model_config = example(
        id=KEY_ID, role="user", user_id="ada", name="ada's laptop", created_at=MOMENT, revoked_at=None
    )


class NewKey(KeyInfo):
    model_config = example(
        id=KEY_ID,
        role="user",
        user_id="ada",
        name="ada's laptop",
        created_at=MOMENT,
        revoked_at=None,
        key=f"fl_{KEY_ID}_{'0' * 64}_{'0' * 8}",
    )

    key: str = Field(description="Returned only once: the database stores its hash.")


class KeyList(Shape):
    data: list[KeyInfo]


class SignIn(Shape):
    model_config = example(key=f"fl_{KEY_ID}_{'0' * 64}_{'0' * 8}")

    key: str = Field(min_length=1, max_length=500)


class SessionInfo(Shape):
    model_config = example(role="viewer", name="wall display", user_id=None, may_act=False, signed_in=True)

    role: Role
    name: str
    user_id: str | None = Field(description="The user whose jobs the key may read; null for other roles.")
    may_act: bool = Field(description="Whether the key may change anything.")
    signed_in: bool = Field(description="Whether the request was authenticated by a session cookie.")


# ---------------------------------------------------------------- dead letters


class DeadFilter(Shape):
    """Selects dead jobs by id, by filters, or all of them. Exactly one of the three is required."""

    job_ids: list[UUID] | None = Field(
        None, max_length=10_000, description="Only these jobs; an empty list selects none."
    )
    user_id: UserId | None = None
    feature_name: Text | None = None
    service: Text | None = Field(None, description="Service of the step that failed.")
    error_code: Text | None = Field(None, description="Code of the last error, such as `HTTP_503`.")
    error_like: Text | None = Field(None, description="Pattern of the error message, with `#` for numbers and ids.")
    retryable: StrictBool | None = Field(None, description="Whether the user may resume the job.")
    since: Text | None = Field(None, description="Failed at or after this time: ISO 8601.")
    until: Text | None = Field(None, description="Failed before this time: ISO 8601.")
    all: StrictBool = Field(False, description="Every dead job.")
    dry_run: StrictBool = Field(False, description="Only count the jobs and return a sample.")

    @model_validator(mode="after")
    def _check_selection(self) -> DeadFilter:
        filtered = any(value is not None for value in self._filters().values())
        if sum((self.job_ids is not None, filtered, self.all)) != 1:
            raise ValueError('select jobs by job_ids, by filters such as user_id and feature_name, or with "all": true')
        return self

    def _filters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in DeadFilters.__annotations__}

    def selection(self) -> dict[str, Any]:
        """Return the selection as keyword arguments of `Fairlead.requeue` and `Fairlead.purge`."""
        job_ids = None if self.job_ids is None else [str(job_id) for job_id in self.job_ids]
        return {"job_ids": job_ids, "all": self.all, **self._filters()}


class PurgeRequest(DeadFilter):
    model_config = example(feature_name="image_gen", dry_run=True)


class PurgeQuery(Shape):
    """The query string of a purge. `all` is its only field, and any other field is an error: if filters in the query
    string were ignored, the purge would delete every dead letter. Filters belong in the body."""

    all: Literal["true", "false"] | None = Field(None, description="`true`, without a body: every dead letter.")


class SearchQuery(Shape):
    q: str = Field(
        min_length=1, max_length=255, description="An id, or a part of a service, a user, a batch or an error."
    )


class Found(Shape):
    model_config = example(kind="user", id="ada")

    kind: Literal["job", "batch", "service", "user", "error"]
    id: str = Field(description="Id of the job or batch, the user, name of the service, or code of the error.")
    text: str | None = Field(None, description="Feature of the job, name of the batch, or message of the error.")
    status: str | None = None
    user_id: str | None = None
    count: int | None = Field(None, description="Number of failed jobs with this error.")


class SearchResults(Shape):
    results: list[Found]


class RequeueRequest(DeadFilter):
    model_config = example(job_ids=[JOB_ID], from_start=False)

    from_start: StrictBool = Field(False, description="Run all steps again instead of continuing at the failed one.")


class DeadSample(Shape):
    """One of the jobs that a dry run counted."""

    job_id: str
    user_id: str
    feature_name: str
    service: str
    finished_at: str
    error: JobError | None


_SAMPLE = [
    {
        "job_id": JOB_ID,
        "user_id": "ada",
        "feature_name": "full_pipeline",
        "service": "image_gen",
        "finished_at": MOMENT,
        "error": {"code": "HTTP_503", "message": "busy"},
    }
]


class _Selected(Shape):
    dry_run: bool
    sample: list[DeadSample] | None = Field(None, description="Some of the jobs; only for a dry run.")
    until: str | None = Field(
        None,
        description="Only for a dry run without `job_ids`: pass it to the action to exclude jobs that failed since.",
    )
    missing: list[str] | None = Field(None, description="Only with `job_ids`: ids that are not dead letters.")


class Requeued(_Selected):
    model_config = example(requeued=12, dry_run=True, sample=_SAMPLE, until=MOMENT)

    requeued: int
    skipped: int | None = Field(
        None,
        description="Requests of the OpenAI front that were left alone, because their clients are gone. Select them by "
        "`job_ids`, `service` or `feature_name` to requeue them.",
    )


class Purged(_Selected):
    model_config = example(purged=12, dry_run=False)

    purged: int


# ---------------------------------------------------------------- doctor


_FINDING = {
    "code": "service-paused",
    "severity": "warning",
    "title": "a service is paused",
    "about": "image_gen",
    "cause": "an operator paused image_gen: no slots are granted, 12 jobs wait",
    "evidence": {"service": "image_gen", "waiting": 12},
    "fix": "`fairlead unpause image_gen`",
}


@fields_of(
    Finding,
    omit=("mark",),
    code="Stable; docs/doctor.md lists all codes.",
    evidence="Observed values by name.",
    fix="How to fix it; commands are in backticks.",
)
class DoctorFinding(Shape):
    model_config = example(**_FINDING)

    severity: Literal["error", "warning", "note"]
    about: str | None = Field(description="The service, process, shard or setting that the finding is about.")


class Diagnosis(Shape):
    model_config = example(well=False, errors=0, warnings=1, notes=0, findings=[_FINDING])

    well: bool = Field(description="True without errors and warnings.")
    errors: int
    warnings: int
    notes: int
    findings: list[DoctorFinding] = Field(description="Most severe first.")
