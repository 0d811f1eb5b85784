"""The sections of the configuration that describe processes and protocols, not services. `domain/config.py` has all
sections together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from fairlead.domain.config_checks import USER_ID, priority_url_problem
from fairlead.domain.config_types import FUNCTION, Headers, Name, Number, RegionName, Seconds, Url, Whole


class Section(BaseModel):
    """Base class of all sections. Rejects unknown keys: a misspelt setting would otherwise be ignored silently."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerConfig(Section):
    host: Annotated[str, StringConstraints(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[Whole, Field(ge=0, le=65535)] = 8000
    certfile: str | None = None
    keyfile: str | None = None
    max_body: Annotated[Whole, Field(ge=1024, le=1 << 30)] = 1048576
    max_batch_body: Annotated[Whole, Field(ge=1024, le=1 << 30)] = 33554432
    max_waiting_per_user: Annotated[Whole, Field(ge=0)] = 0
    submits_per_minute: Annotated[Whole, Field(ge=0, le=1_000_000)] = 0
    max_bulk: Annotated[Whole, Field(ge=1, le=100_000)] = 10_000
    allowed_origins: list[str] = []
    max_head: Annotated[Whole, Field(ge=4096, le=1 << 20)] = 65536
    max_headers: Annotated[Whole, Field(ge=20, le=10_000)] = 100
    max_url: Annotated[Whole, Field(ge=1024, le=1 << 20)] = 16384
    head_timeout: Annotated[Number, Field(ge=0.1, le=3600)] = 20.0
    idle_timeout: Annotated[Number, Field(ge=0.1, le=3600)] = 5.0
    send_timeout: Annotated[Number, Field(ge=0.1, le=3600)] = 30.0
    max_output_readers: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1000
    max_connections: Annotated[Whole, Field(ge=1, le=1_000_000)] = 10_000


class WorkerConfig(Section):
    """The worker of this process. When it stops, its running calls get `drain_timeout` seconds to finish."""

    concurrency: Annotated[Whole, Field(ge=1, le=100_000)] = 1000
    drain_timeout: Annotated[Number, Field(ge=0, le=86400)] = 30.0
    max_result: Annotated[Whole, Field(ge=1024, le=1 << 30)] = 67108864


class WorkerPoolConfig(Section):
    """One of several named workers in a process. By default it takes steps of all bands, services and regions."""

    bands: Annotated[list[Literal["high", "medium", "low"]], Field(min_length=1)] | None = None
    services: Annotated[list[Name], Field(min_length=1)] | None = None
    regions: Annotated[list[RegionName], Field(min_length=1)] | None = None
    concurrency: Annotated[Whole, Field(ge=1, le=100_000)] | None = None


class ManagerConfig(Section):
    """The manager. If the leader stops renewing its lease, another manager takes over after `leader_ttl` seconds."""

    leader_ttl: Annotated[Number, Field(ge=2, le=300)] = 10.0


class TurnsConfig(Section):
    """Turns. A waiting turn whose caller is absent keeps its place in the queue for `grace` seconds."""

    grace: Annotated[Number, Field(ge=0, le=86400)] = 60.0


class OpenAIConfig(Section):
    """The OpenAI front. A response that is not streamed is kept alive with white space after `keepalive_after` seconds.
    The job of a request goes on for `grace` seconds after its gateway died. With `keep = "nothing"`, requests and
    answers are erased soon after the end of their jobs."""

    keepalive_after: Seconds = 45.0
    grace: Annotated[Number, Field(ge=0, le=86400)] = 30.0
    keep: Literal["results", "nothing"] = "results"


class ArtifactsConfig(Section):
    """Files and large values. `url` is a directory, or a bucket such as `s3://bucket/prefix`."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    threshold: Annotated[Whole, Field(ge=1024, le=1 << 30)] = 262144
    max_file: Annotated[Whole, Field(ge=1024, le=1 << 40)] = 1073741824
    max_user_bytes: Annotated[Whole, Field(ge=1, le=1 << 50)] | None = None
    max_inline: Annotated[Whole, Field(ge=1024, le=1 << 30)] = 16777216
    orphan_after: Annotated[Number, Field(ge=1, le=604800)] = 3600.0
    ticket_ttl: Annotated[Number, Field(ge=1, le=604800)] = 3600.0
    public_url: Url | None = None
    presign: bool = False


class PriorityConfig(Section):
    """The HTTP service that returns the priority of users. `url` is its base URL, to which `/users/{user_id}/priority`
    is added, or a whole URL that contains `{user_id}`."""

    url: Url | None = None
    headers: Headers = {}
    timeout: Annotated[Number, Field(gt=0, le=30)] = 0.5
    cache: Annotated[Number, Field(ge=0, le=86400)] = 60.0
    breaker_after: Annotated[Whole, Field(ge=1, le=1000)] = 5
    breaker_rest: Annotated[Number, Field(gt=0, le=3600)] = 10.0

    @field_validator("url")
    @classmethod
    def _only_path_or_query_name_the_user(cls, value: str | None) -> str | None:
        if value is not None and (problem := priority_url_problem(value)):
            raise ValueError(problem)
        return value

    @property
    def template(self) -> str | None:
        """The whole URL of a request, with `{user_id}` as placeholder."""
        if self.url is None or USER_ID in self.url:
            return self.url
        return f"{self.url.rstrip('/')}/users/{USER_ID}/priority"


class CeleryConfig(Section):
    """How to reach Celery for services that are Celery tasks: the app, or its broker and result backend."""

    app: Annotated[str, StringConstraints(pattern=FUNCTION)] | None = None
    broker_url: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    result_backend: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    lost_after: Annotated[Number, Field(ge=0, le=86400)] = 30.0
