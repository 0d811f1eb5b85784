"""`/api/v1/jobs/{job_id}/output`: the output of a job while it runs, as Server-Sent Events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from fairlead.app.output_stream import Batch
from fairlead.domain.output import Chunk, Output, Restart
from fairlead.errors import NotFound, TooManyReaders
from fairlead.gateway import models
from fairlead.gateway.jobs import JOBS
from fairlead.gateway.openapi import EVENT, ONE_JOB, documented, header
from fairlead.gateway.responses import HEARTBEAT_S, KEEP_ALIVE, RETRY_MS, FrameStream, closing, fairlead_of

END = "end"
"""The id of the last event. A browser that reconnects with it has received everything."""

router = APIRouter(prefix=JOBS, tags=["jobs"])

_AFTER = Query(description="Begin after this position, such as `12-40`. `Last-Event-ID` has precedence.", max_length=40)


@router.get(
    "/{job_id}/output",
    summary="A job's output, as Server-Sent Events",
    operation_id="stream_output",
    description="Each `chunk` that the job's steps emit, from the start or after a position, until the `end` of the "
    "job. `restart`: discard the chunks of the step `step_index` and of later steps, because the step runs again. A "
    "comment every 15 seconds keeps the connection open. A client that reconnects after the end receives 204.",
    openapi_extra={"parameters": [header("Last-Event-ID", "The position of the last chunk that was received.")]},
    responses={
        **documented(200, None, "The output.", *ONE_JOB, TooManyReaders),
        200: {
            "description": "The output.",
            "content": {
                "text/event-stream": {
                    "itemSchema": EVENT,
                    "example": "id: 2-0\nevent: chunk\n"
                    'data: {"type":"chunk","position":"2-0","step_index":0,"attempt":1,"data":"Hello"}\n\n'
                    f'id: end\nevent: end\ndata: {{"type":"end","job_id":"{models.JOB_ID}","status":"COMPLETED",'
                    '"error":null}\n\n',
                }
            },
        },
        204: {"description": "The job has ended and the client has received its output."},
    },
)
async def stream_output(request: Request, job_id: UUID, after: Annotated[str | None, _AFTER] = None) -> Response:
    app, name = fairlead_of(request), str(job_id)
    last = request.headers.get("last-event-id")
    if last == END:
        if (await app.get(name)).status.finished:
            return Response(status_code=204)
        last = None
    elif await app.owner_of(name) is None:
        raise NotFound(f"there is no job {name}")
    batches = app.jobs.output_stream(name, last or after).follow_batches(HEARTBEAT_S)
    return FrameStream(closing(_frames(batches), batches))


async def _frames(batches: AsyncIterator[Batch]) -> AsyncGenerator[bytes, None]:
    yield f"retry: {RETRY_MS}\n\n".encode()
    async for batch in batches:
        yield b"".join(map(_frame, batch)) or KEEP_ALIVE


def _frame(output: Output) -> bytes:
    if isinstance(output, Chunk):
        return _event("chunk", output.as_dict(), str(output.position))
    if isinstance(output, Restart):
        return _event("restart", {"step_index": output.step_index})
    job = output.job
    return _event("end", {"job_id": job.job_id, "status": job.status, "error": job.error}, END)


def _event(kind: str, fields: dict[str, Any], event_id: str | None = None) -> bytes:
    begins = "" if event_id is None else f"id: {event_id}\n"
    return f"{begins}event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **fields}) + b"\n\n"
