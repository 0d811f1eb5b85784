"""`/api/v1/turns`: slots that callers use themselves. Wait for a slot, keep it, give it back.

A gateway cannot notice that a caller over HTTP has died, so a caller counts as alive while it sends requests.
`TurnLiveness` tracks these requests.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fairlead.domain.access import Role
from fairlead.domain.submission import ANONYMOUS, MAX_USER_ID
from fairlead.domain.turns import TurnView
from fairlead.domain.validation import check_text, user_text
from fairlead.errors import (
    BudgetSpent,
    IdempotencyMismatch,
    InvalidInput,
    RequestError,
    TooManyWaiting,
    TurnLost,
    WrongState,
)
from fairlead.gateway import models_turns, request_parsing
from fairlead.gateway.jobs import KEY
from fairlead.gateway.openapi import EVENT, ONE_JOB, RATE_HEADERS, SUBMIT, WITH_BODY, body, documented, header
from fairlead.gateway.permissions import caller_of, operator_of
from fairlead.gateway.problems import ManyInvalid, RateLimited, pointer
from fairlead.gateway.rate_limit import count_jobs
from fairlead.gateway.responses import END, HEARTBEAT_S, SseStream, fairlead_of, json_response
from fairlead.gateway.turn_events import TURN_GRANTED, TURNS, TurnLiveness, granted_or_ended, turn_events, turn_json

T = TypeVar("T")
FIELDS = frozenset(models_turns.TurnRequest.model_fields)

router = APIRouter(prefix=TURNS, tags=["turns"])

_PREFER = header(
    "Prefer",
    "`wait=N`: wait up to N seconds (at most 60) for the slot, and take it. Without it, the turn is only read.",
    examples=["wait=30"],
)


def liveness_of(request: Request) -> TurnLiveness:
    liveness: TurnLiveness = request.app.state.turn_liveness
    return liveness


# ---------------------------------------------------------------- opening


@router.post(
    "",
    status_code=202,
    summary="Queue for a slot that the caller uses itself",
    operation_id="open_turn",
    description="Then wait for the slot with `GET` and `Prefer: wait=N`, or with the events; only waiting callers "
    "get one.",
    openapi_extra={**body(models_turns.TurnRequest), "parameters": [KEY]},
    responses=documented(
        202,
        models_turns.Turn,
        "Queued: the turn is committed.",
        *SUBMIT,
        IdempotencyMismatch,
        BudgetSpent,
        TooManyWaiting,
        RateLimited,
        headers={
            "Location": "The turn.",
            "Idempotent-Replayed": "`true` for a repeated request.",
            **RATE_HEADERS,
        },
    ),
)
async def open_turn(request: Request) -> Response:
    app, caller = fairlead_of(request), caller_of(request)
    raw = await request_parsing.read_json(request)
    is_user = caller.role is Role.USER
    fields = _read(request_parsing.as_own(raw, caller.user_id) if is_user else raw)
    user_id = fields.pop("user_id")
    key = request_parsing.idempotency_key(request)
    replayed = key is not None and await app.was_submitted(user_id, key)
    headers = {} if replayed else count_jobs(request, user_id, 1)
    try:
        turn = await app.turns.open(
            **fields,
            user_id=user_id,
            idempotency_key=key,
            body_hash=None if key is None else _hash_of({**fields, "user_id": user_id}),
            lowers_only=is_user,
            outside=True,
        )
    except RequestError as error:
        raise _with_field_names(error) from None
    liveness_of(request).seen(turn)
    headers["Location"] = f"{TURNS}/{turn.turn_id}"
    if replayed:
        headers["Idempotent-Replayed"] = "true"
    return json_response(turn_json(await app.turns.get(turn.turn_id)), 202, headers)


def _read(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidInput("a turn must be a JSON object", pointer="")
    errors: list[RequestError] = [
        InvalidInput(
            f"{name[:100]!r} is not a field of a turn; valid are: {', '.join(sorted(FIELDS))}", pointer=pointer(name)
        )
        for name in raw
        if name not in FIELDS
    ]
    if "service" not in raw:
        errors.append(InvalidInput("service is missing", pointer="/service"))
    if errors:
        raise ManyInvalid(errors)
    fields = {name: value for name, value in raw.items() if value is not None}
    service = check_text(raw["service"], "service", 63)
    return {
        **fields,
        "service": service,
        "user_id": check_text(user_text(fields.get("user_id", ANONYMOUS)), "user_id", MAX_USER_ID),
    }


def _hash_of(fields: dict[str, Any]) -> str:
    """Return a hash of all fields of a request for a turn, to detect that an idempotency key is used for a different
    request. The store's own hash of a job does not cover `wait_timeout`."""
    try:
        return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except TypeError:
        return ""  # nested too deeply for orjson; the application reports the field


def _with_field_names(error: RequestError) -> RequestError:
    if error.pointer == "/feature_name":
        error.pointer = "/service"
    return error


# ---------------------------------------------------------------- waiting and reading


@router.get(
    "/{turn_id}",
    summary="Wait for a turn, or read it",
    operation_id="get_turn",
    description="With `Prefer: wait=N` the request counts as the caller's: it keeps the position and takes a slot that "
    "becomes free. Without it, the turn is only read. A viewer's key only reads, and with `Prefer` waits until the "
    "slot is taken.",
    openapi_extra={"parameters": [_PREFER]},
    responses=documented(
        200, models_turns.Turn, "The turn.", *ONE_JOB, headers={"Preference-Applied": "The wait that was applied."}
    ),
)
async def get_turn(request: Request, turn_id: UUID) -> Response:
    app, seconds = fairlead_of(request), request_parsing.preferred_wait(request)
    turn = await app.turns.get(str(turn_id))
    if seconds is None:
        return json_response(turn_json(turn))
    liveness = liveness_of(request)
    if not caller_of(request).may_act:
        await _until_disconnect(request, granted_or_ended(app, turn, seconds))
        turn = await app.turns.get(turn.turn_id)
    else:
        with liveness.waiting(turn):
            await _until_disconnect(request, app.turns.wait(turn.turn_id, seconds))
        turn = await app.turns.get(turn.turn_id)
        liveness.seen(turn)
    return json_response(turn_json(turn), headers={"Preference-Applied": f"wait={seconds}"})


async def _until_disconnect(request: Request, waiting: Coroutine[Any, Any, T]) -> T:
    """Await `waiting`, and cancel it if the client disconnects, so that no slot is taken for an absent client."""
    task, gone = asyncio.create_task(waiting), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.get(
    "/{turn_id}/events",
    summary="Wait for a turn with Server-Sent Events",
    operation_id="watch_turn",
    description="For the caller of the turn: while connected it keeps its position and takes a slot that becomes free. "
    f"Events: SNAPSHOT with the turn, POSITION on changes, {TURN_GRANTED} with the slot (which the caller renews from "
    "then on), and TURN_LOST or TURN_ENDED at the end. A viewer's key receives the same events and takes no slot. "
    "A client that reconnects after the end receives 204, which makes browsers stop.",
    openapi_extra={"parameters": [header("Last-Event-ID", "Sent by browsers that reconnect.")]},
    responses={
        **documented(200, None, "The events.", *ONE_JOB),
        200: {"description": "The events.", "content": {"text/event-stream": {"itemSchema": EVENT}}},
        204: {"description": "The turn has ended and the client has received its last event."},
    },
)
async def watch_turn(request: Request, turn_id: UUID) -> Response:
    app = fairlead_of(request)
    turn = await app.turns.get(str(turn_id))
    if turn.status.finished and request.headers.get("last-event-id", "").endswith(END):
        return Response(status_code=204)
    liveness = liveness_of(request) if caller_of(request).may_act else None
    events = turn_events(app, liveness, turn, HEARTBEAT_S)
    return SseStream(await anext(events), events)


# ---------------------------------------------------------------- keeping and returning the slot


@router.post(
    "/{turn_id}/renew",
    summary="Renew a turn",
    operation_id="renew_turn",
    description="A RUNNING turn keeps its slot for another `lease_ttl` seconds; a PENDING turn keeps its position.",
    responses=documented(200, models_turns.Turn, "The turn.", *ONE_JOB, WrongState),
)
async def renew_turn(request: Request, turn_id: UUID) -> Response:
    app = fairlead_of(request)
    turn = await app.turns.wait(str(turn_id), 0)
    if turn.status.finished:
        raise _ended(turn)
    liveness_of(request).seen(turn)
    return json_response(turn_json(await app.turns.get(turn.turn_id)))


@router.post(
    "/{turn_id}/finish",
    summary="Finish a turn with a result or an error, and return its slot",
    operation_id="finish_turn",
    openapi_extra=body(models_turns.FinishRequest, required=False),
    responses=documented(200, models_turns.Turn, "The finished turn.", *ONE_JOB, *WITH_BODY, WrongState),
)
async def finish_turn(request: Request, turn_id: UUID) -> Response:
    app = fairlead_of(request)
    outcome = await request_parsing.read_model(request, models_turns.FinishRequest)
    if outcome.error is not None and outcome.result is not None:
        raise InvalidInput("send a result or an error, not both", pointer="/error")
    try:
        if outcome.error is None:
            turn = await app.turns.finish(str(turn_id), outcome.result, usage=outcome.usage)
        else:
            await app.turns.renew(str(turn_id))  # only a turn with a slot can fail; a waiting one is cancelled
            turn = await app.turns.fail(str(turn_id), outcome.error, usage=outcome.usage)
    except TurnLost:
        raise _ended(await app.turns.get(str(turn_id))) from None
    liveness_of(request).seen(turn)
    return json_response(turn_json(turn))


@router.post(
    "/{turn_id}/cancel",
    summary="Leave the queue, or return the slot without a result",
    operation_id="cancel_turn",
    responses=documented(200, models_turns.Turn, "The cancelled turn.", *ONE_JOB, WrongState),
)
async def cancel_turn(request: Request, turn_id: UUID) -> Response:
    turns = fairlead_of(request).turns
    turn = await turns.cancel(str(turn_id), who=operator_of(request))
    await turns.left(turn.turn_id)  # the caller cancelled it, so it needs no time to stop
    liveness_of(request).seen(turn)
    return json_response(turn_json(turn))


def _ended(turn: TurnView) -> WrongState:
    reason = (turn.error or {}).get("message", f"it is {turn.status}")
    return WrongState(f"this turn no longer has the slot: {reason}", details={"status": turn.status.value})
