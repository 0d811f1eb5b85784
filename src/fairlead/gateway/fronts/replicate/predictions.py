"""Jobs as predictions: the JSON that Replicate's clients read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request

from fairlead.artifacts.values import is_stored
from fairlead.domain import replicate
from fairlead.domain.files import references_in, stream_subject
from fairlead.domain.job import JobStatus
from fairlead.domain.replicate import PREFIX, Mark, Prediction, seconds
from fairlead.errors import InvalidInput
from fairlead.gateway.fronts.addresses import origin_of
from fairlead.gateway.fronts.replicate import catalog
from fairlead.gateway.responses import fairlead_of

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.domain.views import JobView

STREAMED_FOR_S = 86400.0
"""How long the URL of a stream is valid at least."""


def base_of(request: Request) -> str:
    """The address of the front as the client reaches it."""
    return f"{origin_of(request)}{PREFIX}"


class Presenter:
    """Shows jobs as predictions to the sender of one request."""

    def __init__(self, request: Request) -> None:
        self._app: Fairlead = fairlead_of(request)
        self._origin = origin_of(request)
        self.base = f"{self._origin}{PREFIX}"

    async def shown(self, job: JobView, *, waited: bool = False, most: int | None = None) -> dict[str, Any]:
        """The prediction of a job. `waited`: the caller has waited for its end, and takes any status but `starting` for
        it. `most`: an output that has more bytes, as JSON, is null."""
        config, mark = self._app.config, Mark.of(job.metadata)
        status = replicate.status_of(job.status, job.error, started=job.started_at is not None)
        if waited and not job.status.finished:
            status = replicate.STARTING
        return Prediction(
            id=job.job_id,
            model=mark.model or catalog.model_of(config, job.feature_name),
            version=mark.version or replicate.version_of(job.feature_name),
            status=status,
            base=self.base,
            input=await self.with_urls(job.input_data),
            output=await self.with_urls(await self._output(job, most)),
            error=replicate.error_text(job.error) if job.status is JobStatus.FAILED else None,
            logs=_logs(job),
            created_at=seconds(job.created_at),
            started_at=seconds(job.started_at),
            completed_at=seconds(job.finished_at),
            stream=await self._stream_url(job.job_id),
        ).as_dict()

    async def with_urls(self, value: Any, user_id: str | None = None) -> Any:
        """The value with a URL in place of each reference to a file. With `user_id`, for a value that was not checked
        when it was stored, it is returned as it is if it names a file of another user."""
        try:
            names = set(references_in(value)) if isinstance(value, dict | list) else set()
        except InvalidInput:
            return value  # it only looks like a reference
        if not names:
            return value
        found = {} if user_id is None else await self._app.files.get_many(sorted(names))
        if any(file.user_id != user_id for file in found.values()):
            return value
        tickets = {name: (await self._app.files.ticket(name))[0] for name in names}
        return replicate.with_urls(value, lambda name: f"{self._origin}/files/{name}?ticket={tickets[name]}")

    async def _output(self, job: JobView, most: int | None) -> Any:
        if job.status is not JobStatus.COMPLETED:
            return None
        if most is not None and (is_stored(job.result) or len(orjson.dumps(job.result)) > most):
            return None
        return await self._app.jobs.whole_result(job.job_id, job.result)

    async def _stream_url(self, job_id: str) -> str:
        ticket, _ = await self._app.files.ticket(stream_subject(job_id), STREAMED_FOR_S)
        return f"{self.base}/predictions/{job_id}/stream?ticket={ticket}"


def _logs(job: JobView) -> str:
    if job.position is not None and job.started_at is None:
        wait = job.estimated_wait
        return replicate.queue_line(job.position, None if wait is None else {"low": wait.low, "high": wait.high})
    return replicate.progress_lines(job.progress)
