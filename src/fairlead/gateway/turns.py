"""`/api/v1/turns`: a slot for work that the caller does itself; wait for it, keep it, give it back.

A caller over HTTP has no process that could be seen to be gone: it is there while it asks. `Callers` knows who is.
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

from fairlead.domain.keys import Role
from fairlead.errors import IdempotencyMismatch, InvalidInput, RequestError, TooManyWaiting, TurnLost, WrongState
from fairlead.gateway import bodies
from fairlead.gateway import models_turns as shapes
from fairlead.gateway.access import caller_of, operator_of
from fairlead.gateway.jobs import KEY
from fairlead.gateway.openapi import EVENT, ONE_JOB, RATE_HEADERS, SUBMIT, WITH_BODY, answers, body, header
from fairlead.gateway.problems import ManyInvalid, RateLimited, pointer
from fairlead.gateway.rates import SubmitRate
from fairlead.gateway.replies import answer, fairlead_of
from fairlead.gateway.stream import END, HEARTBEAT_S, EventStream
from fairlead.gateway.turn_callers import Callers
from fairlead.gateway.turn_events import TURN_GRANTED, turn_events
from fairlead.gateway.turn_shown import TURNS, shown
from fairlead.runtime.submission import ANONYMOUS, MAX_USER_ID, Submission, check_text
from fairlead.runtime.turns.view import TurnView

T = TypeVar("T")
FIELDS = frozenset(shapes.TurnRequest.model_fields)

router = APIRouter(prefix=TURNS, tags=["turns"])

_PREFER = header(
    "Prefer",
    "`wait=N`: wait up to N seconds (at most 60) for the slot, and take it. Without it this only looks.",
    examples=["wait=30"],
)


def callers_of(request: Request) -> Callers:
    callers: Callers = request.app.state.turn_callers
    return callers


# ---------------------------------------------------------------- into the line


@router.post(
    "",
    status_code=202,
    summary="Stand in line for a slot, for work that the caller does itself",
    operation_id="open_turn",
    description="Then wait for it, with `GET` and `Prefer: wait=N` or with the events: a slot goes to who is there.",
    openapi_extra={**body(shapes.TurnRequest), "parameters": [KEY]},
    responses=answers(
        202,
        shapes.Turn,
        "In line: the turn is committed.",
        *SUBMIT,
        IdempotencyMismatch,
        TooManyWaiting,
        RateLimited,
        headers={
            "Location": "The turn.",
            "Idempotent-Replayed": "`true` when the key was seen before.",
            **RATE_HEADERS,
        },
    ),
)
async def open_turn(request: Request) -> Response:
    app, caller = fairlead_of(request), caller_of(request)
    raw = await bodies.read_json(request)
    is_user = caller.role is Role.USER
    wanted = _read(bodies.as_own(raw, caller.user_id) if is_user else raw)
    user_id = wanted.pop("user_id")
    key = bodies.idempotency_key(request)
    replayed = key is not None and await app.was_submitted(user_id, key)
    headers = {} if replayed else _counted(request, user_id)
    try:
        turn = await app.turns.open(
            **wanted,
            user_id=user_id,
            idempotency_key=key,
            body_hash=None if key is None else _hash_of({**wanted, "user_id": user_id}),
            lowers_only=is_user,
            outside=True,
        )
    except RequestError as error:
        raise _as_said_here(error) from None
    callers_of(request).heard(turn)
    headers["Location"] = f"{TURNS}/{turn.turn_id}"
    if replayed:
        headers["Idempotent-Replayed"] = "true"
    return answer(shown(await app.turns.get(turn.turn_id)), 202, headers)


def _read(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidInput("a turn must be a JSON object", pointer="")
    wrong: list[RequestError] = [
        InvalidInput(
            f"{name[:100]!r} is no field of a turn; known are: {', '.join(sorted(FIELDS))}", pointer=pointer(name)
        )
        for name in raw
        if name not in FIELDS
    ]
    if "service" not in raw:
        wrong.append(InvalidInput("service is missing", pointer="/service"))
    if wrong:
        raise ManyInvalid(wrong)
    said = {name: value for name, value in raw.items() if value is not None}
    service = check_text(raw["service"], "service", 63)
    return {**said, "service": service, "user_id": check_text(said.get("user_id", ANONYMOUS), "user_id", MAX_USER_ID)}


def _hash_of(wanted: dict[str, Any]) -> str:
    """All that was said: of a job the store's own fingerprint knows nothing of a wait_timeout."""
    try:
        return hashlib.sha256(orjson.dumps(wanted, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except TypeError:
        return ""  # too deep for orjson, and so for any field: the application names it


def _counted(request: Request, user_id: str) -> dict[str, str]:
    rate: SubmitRate | None = request.app.state.submit_rate
    return {} if rate is None else rate.take([Submission("", None, user_id)])


def _as_said_here(error: RequestError) -> RequestError:
    if error.pointer == "/feature_name":
        error.pointer = "/service"
    return error


# ---------------------------------------------------------------- waiting and looking


@router.get(
    "/{turn_id}",
    summary="Wait for a turn, or look at it",
    operation_id="get_turn",
    description="With `Prefer: wait=N` it is the caller that asks: its place is kept, and a slot that comes is taken. "
    "Without, anybody may look.",
    openapi_extra={"parameters": [_PREFER]},
    responses=answers(
        200, shapes.Turn, "The turn.", *ONE_JOB, headers={"Preference-Applied": "The wait that was applied."}
    ),
)
async def get_turn(request: Request, turn_id: UUID) -> Response:
    app, seconds = fairlead_of(request), bodies.preferred_wait(request)
    turn = await app.turns.get(str(turn_id))
    if seconds is None:
        return answer(shown(turn))
    callers = callers_of(request)
    with callers.asking(turn):
        await _while_there(request, app.turns.wait(turn.turn_id, seconds))
    turn = await app.turns.get(turn.turn_id)
    callers.heard(turn)
    return answer(shown(turn), headers={"Preference-Applied": f"wait={seconds}"})


async def _while_there(request: Request, waiting: Coroutine[Any, Any, T]) -> T:
    """Nobody must wait, and take a slot, for a client that has hung up."""
    task, gone = asyncio.create_task(waiting), asyncio.create_task(_hung_up(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.get(
    "/{turn_id}/events",
    summary="Wait for a turn, with Server-Sent Events",
    operation_id="watch_turn",
    description="For its caller: while it listens its place is kept, and a slot that comes is taken. SNAPSHOT with the "
    f"turn, POSITION as it changes, {TURN_GRANTED} when the slot is the caller's (who renews it from then on), and "
    "TURN_LOST or TURN_ENDED at last. A client that reconnects after the end gets 204, which tells browsers to stop.",
    openapi_extra={"parameters": [header("Last-Event-ID", "Sent by browsers that reconnect.")]},
    responses={
        **answers(200, None, "The events.", *ONE_JOB),
        200: {"description": "The events.", "content": {"text/event-stream": {"itemSchema": EVENT}}},
        204: {"description": "The turn has ended, and the client has seen its last event."},
    },
)
async def watch_turn(request: Request, turn_id: UUID) -> Response:
    app = fairlead_of(request)
    turn = await app.turns.get(str(turn_id))
    if turn.status.finished and request.headers.get("last-event-id", "").endswith(END):
        return Response(status_code=204)
    events = turn_events(app, callers_of(request), turn, HEARTBEAT_S)
    return EventStream(await anext(events), events)


# ---------------------------------------------------------------- keeping it, and giving it back


@router.post(
    "/{turn_id}/renew",
    summary="Say that the caller is still there",
    operation_id="renew_turn",
    description="RUNNING: the slot is kept for another `lease_ttl` seconds. PENDING: the place in line is.",
    responses=answers(200, shapes.Turn, "The turn.", *ONE_JOB, WrongState),
)
async def renew_turn(request: Request, turn_id: UUID) -> Response:
    app = fairlead_of(request)
    turn = await app.turns.wait(str(turn_id), 0)
    if turn.status.finished:
        raise _ended(turn)
    callers_of(request).heard(turn)
    return answer(shown(await app.turns.get(turn.turn_id)))


@router.post(
    "/{turn_id}/finish",
    summary="The work is done, or has failed: give the slot back",
    operation_id="finish_turn",
    openapi_extra=body(shapes.FinishRequest, required=False),
    responses=answers(200, shapes.Turn, "The turn, ended.", *ONE_JOB, *WITH_BODY, WrongState),
)
async def finish_turn(request: Request, turn_id: UUID) -> Response:
    app = fairlead_of(request)
    said = await bodies.read_model(request, shapes.FinishRequest)
    if said.error is not None and said.result is not None:
        raise InvalidInput("give a result or an error, not both", pointer="/error")
    try:
        if said.error is None:
            turn = await app.turns.finish(str(turn_id), said.result)
        else:
            await app.turns.renew(str(turn_id))  # a failure of work needs a slot too: who only waits cancels
            turn = await app.turns.fail(str(turn_id), said.error)
    except TurnLost:
        raise _ended(await app.turns.get(str(turn_id))) from None
    callers_of(request).heard(turn)
    return answer(shown(turn))


@router.post(
    "/{turn_id}/cancel",
    summary="Leave the line, or give the slot back without a result",
    operation_id="cancel_turn",
    responses=answers(200, shapes.Turn, "The turn, cancelled.", *ONE_JOB, WrongState),
)
async def cancel_turn(request: Request, turn_id: UUID) -> Response:
    turns = fairlead_of(request).turns
    turn = await turns.cancel(str(turn_id), who=operator_of(request))
    await turns.left(turn.turn_id)  # it was its caller that said so, and need not be given time to leave
    callers_of(request).heard(turn)
    return answer(shown(turn))


def _ended(turn: TurnView) -> WrongState:
    why = (turn.error or {}).get("message", f"it is {turn.status}")
    return WrongState(f"the slot is not this turn's any more: {why}", details={"status": turn.status.value})
