"""`POST /inference`: one call of a model, and its result in the answer. It is a job like any other: it waits its turn,
survives a crash, and goes on when whoever asked has gone."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from fairlead.domain.job import JobStatus, step_key
from fairlead.domain.keys import Role
from fairlead.errors import IdempotencyMismatch, InvalidInput, RequestError, TooManyWaiting
from fairlead.gateway import bodies, models
from fairlead.gateway.accepting import accept
from fairlead.gateway.access import caller_of
from fairlead.gateway.jobs import ACCEPTED, JOBS, KEY, receipt_of
from fairlead.gateway.openapi import SUBMIT, answers, body
from fairlead.gateway.problems import InferenceCancelled, InferenceFailed, ManyInvalid, RateLimited, pointer
from fairlead.gateway.replies import answer, fairlead_of
from fairlead.runtime.submission import Submission
from fairlead.runtime.view import JobView

USUAL_TIMEOUT, LONGEST_TIMEOUT = 30.0, 300.0
# Those of a job that mean the same here. A job's other fields have no place in a call that somebody waits for.
SHARED = frozenset({"input_data", "user_id", "priority", "region", "allowed_regions"})
FIELDS = SHARED | {"model", "timeout"}

router = APIRouter(tags=["jobs"])


@router.post(
    "/inference",
    summary="Call a model, and wait for its result",
    operation_id="infer",
    description="`model` is a service or a pipeline. A failure is a problem that names the job and its error; after "
    "`timeout` seconds the answer is 202 with where to look, and the job goes on.",
    openapi_extra={**body(models.InferenceRequest), "parameters": [KEY]},
    responses={
        **answers(
            200,
            models.Inference,
            "The result.",
            *SUBMIT,
            IdempotencyMismatch,
            TooManyWaiting,
            RateLimited,
            InferenceFailed,
            InferenceCancelled,
            headers=ACCEPTED,
        ),
        **answers(202, models.Receipt, "Not yet: the job goes on.", headers=ACCEPTED),
    },
)
async def infer(request: Request) -> Response:
    app, caller = fairlead_of(request), caller_of(request)
    raw = await bodies.read_json(request)
    if isinstance(raw, dict):  # all but the model may be absent, and null is the same as that
        raw = {name: value for name, value in raw.items() if value is not None or name not in SHARED}
    is_user = caller.role is Role.USER
    wanted, timeout = _read(bodies.as_own(raw, caller.user_id) if is_user else raw)
    key = bodies.idempotency_key(request)
    try:
        receipts, headers = await accept(request, [wanted], key, idempotency_key=key, lowers_only=is_user)
    except RequestError as error:
        raise _as_said_here(error) from None
    receipt = receipts[0]
    headers |= {"Location": f"{JOBS}/{receipt.job_id}"}
    if receipt.replayed:
        headers["Idempotent-Replayed"] = "true"
    job = await app.wait(receipt.job_id, timeout)
    if not job.status.finished:
        return answer(receipt_of(job), 202, headers)
    return answer(_outcome(job), 200, headers)


def _read(raw: Any) -> tuple[Submission, float]:
    if not isinstance(raw, dict):
        raise InvalidInput("the body must be a JSON object", pointer="")
    wrong: list[RequestError] = [
        InvalidInput(f"{name[:100]!r} is not known here; known are: {', '.join(sorted(FIELDS))}", pointer=pointer(name))
        for name in raw
        if name not in FIELDS
    ]
    if "model" not in raw:
        wrong.append(InvalidInput("model is missing", pointer="/model"))
    timeout = raw.get("timeout")
    if timeout is None:
        timeout = USUAL_TIMEOUT
    elif isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= LONGEST_TIMEOUT:
        text = f"timeout must be a number of seconds from 0 to {LONGEST_TIMEOUT:g}"
        wrong.append(InvalidInput(text, pointer="/timeout"))
    if wrong:
        raise ManyInvalid(wrong)
    return Submission(raw["model"], **{name: raw[name] for name in raw.keys() & SHARED}), float(timeout)


def _as_said_here(error: RequestError) -> RequestError:
    """What a job calls its feature is the model here."""
    if error.pointer == "/feature_name":
        error.pointer = "/model"
        error.message = error.message.replace("feature_name", "model")
    return error


def _outcome(job: JobView) -> dict[str, Any]:
    if job.status is JobStatus.FAILED:
        said = (job.error or {}).get("message", "no reason is known")
        raise InferenceFailed(f"job {job.job_id} failed: {said}", details=_about(job))
    if job.status is JobStatus.CANCELLED:
        raise InferenceCancelled(f"job {job.job_id} was cancelled", details=_about(job))
    last = len(job.steps) - 1
    step = (job.context or {}).get(step_key(last, job.steps[last]), {})
    metrics = step.get("metrics", {})
    return {
        "job_id": job.job_id,
        "status": job.status,
        "model": job.feature_name,
        "result": job.result,
        "region": metrics.get("region"),
        "latency_ms": round(((job.finished_at or job.created_at) - job.created_at) * 1000, 3),
        "metrics": metrics,
    }


def _about(job: JobView) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "status": job.status,
        "error": job.error,
        "retryable": bool(job.retryable),
        "status_url": f"{JOBS}/{job.job_id}",
    }
