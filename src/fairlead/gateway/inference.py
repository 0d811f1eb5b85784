"""`POST /inference`: call a model and wait for its result. The call is an ordinary job: it is queued, survives a crash,
and continues if the client disconnects."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.access import Role
from fairlead.domain.job import JobStatus, step_key
from fairlead.domain.submission import Submission
from fairlead.domain.views import JobView
from fairlead.errors import BudgetSpent, IdempotencyMismatch, InvalidInput, RequestError, TooManyWaiting
from fairlead.gateway import models, request_parsing
from fairlead.gateway.jobs import ACCEPTED, JOBS, KEY, receipt_of
from fairlead.gateway.openapi import SUBMIT, body, documented
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.problems import InferenceCancelled, InferenceFailed, ManyInvalid, RateLimited, pointer
from fairlead.gateway.rate_limit import accept_jobs
from fairlead.gateway.responses import fairlead_of, json_response

DEFAULT_TIMEOUT, MAX_TIMEOUT = 30.0, 300.0
# Fields of a job that have the same meaning here. A job's other fields make no sense for a call that the client waits
# for.
SHARED = frozenset({"input_data", "user_id", "priority", "region", "allowed_regions"})
FIELDS = SHARED | {"model", "timeout"}

router = APIRouter(tags=["jobs"])


@router.post(
    "/inference",
    summary="Call a model and wait for its result",
    operation_id="infer",
    description="`model` is a service or a pipeline. A failure is a problem with the job and its error. After "
    "`timeout` seconds the response is 202 with the URL of the job, which continues.",
    openapi_extra={**body(models.InferenceRequest), "parameters": [KEY]},
    responses={
        **documented(
            200,
            models.Inference,
            "The result.",
            *SUBMIT,
            IdempotencyMismatch,
            BudgetSpent,
            TooManyWaiting,
            RateLimited,
            InferenceFailed,
            InferenceCancelled,
            headers=ACCEPTED,
        ),
        **documented(202, models.Receipt, "The job has not ended yet.", headers=ACCEPTED),
    },
)
async def infer(request: Request) -> Response:
    app, caller = fairlead_of(request), caller_of(request)
    raw = await request_parsing.read_json(request)
    if isinstance(raw, dict):  # null counts as absent
        raw = {name: value for name, value in raw.items() if value is not None or name not in SHARED}
    is_user = caller.role is Role.USER
    submission, timeout = _read(request_parsing.as_own(raw, caller.user_id) if is_user else raw)
    key = request_parsing.idempotency_key(request)
    try:
        receipts, headers = await accept_jobs(request, [submission], key, idempotency_key=key, lowers_only=is_user)
    except RequestError as error:
        raise _with_field_names(error) from None
    receipt = receipts[0]
    headers |= {"Location": f"{JOBS}/{receipt.job_id}"}
    if receipt.replayed:
        headers["Idempotent-Replayed"] = "true"
    job = await app.wait(receipt.job_id, timeout)
    if not job.status.finished:
        return json_response(receipt_of(job), 202, headers)
    return json_response(_outcome(job), 200, headers)


def _read(raw: Any) -> tuple[Submission, float]:
    if not isinstance(raw, dict):
        raise InvalidInput("the body must be a JSON object", pointer="")
    errors: list[RequestError] = [
        InvalidInput(
            f"{name[:100]!r} is not a field of an inference; valid are: {', '.join(sorted(FIELDS))}",
            pointer=pointer(name),
        )
        for name in raw
        if name not in FIELDS
    ]
    if "model" not in raw:
        errors.append(InvalidInput("model is missing", pointer="/model"))
    timeout = raw.get("timeout")
    if timeout is None:
        timeout = DEFAULT_TIMEOUT
    elif isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= MAX_TIMEOUT:
        text = f"timeout must be a number of seconds from 0 to {MAX_TIMEOUT:g}"
        errors.append(InvalidInput(text, pointer="/timeout"))
    if errors:
        raise ManyInvalid(errors)
    return Submission(raw["model"], **{name: raw[name] for name in raw.keys() & SHARED}), float(timeout)


def _with_field_names(error: RequestError) -> RequestError:
    """Rename `feature_name` to `model` in an error, since callers of `POST /inference` send the field `model`."""
    if error.pointer == "/feature_name":
        error.pointer = "/model"
        error.message = error.message.replace("feature_name", "model")
    return error


def _outcome(job: JobView) -> dict[str, Any]:
    if job.status is JobStatus.FAILED:
        message = (job.error or {}).get("message", "unknown reason")
        raise InferenceFailed(f"job {job.job_id} failed: {message}", details=_details(job))
    if job.status is JobStatus.CANCELLED:
        raise InferenceCancelled(f"job {job.job_id} was cancelled", details=_details(job))
    last = len(job.steps) - 1
    step = (job.context or {}).get(step_key(last, job.steps[last]), {})
    metrics = step.get("metrics", {})
    return {
        "job_id": job.job_id,
        "status": job.status,
        "model": job.feature_name,
        "result": job.result,
        "region": metrics.get("region"),
        "latency_ms": round(((job.finished_at or job.created_at) - job.created_at).total_seconds() * 1000, 3),
        "metrics": metrics,
    }


def _details(job: JobView) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "status": job.status,
        "error": job.error,
        "retryable": bool(job.retryable),
        "status_url": f"{JOBS}/{job.job_id}",
    }
