"""The interface of ImageQueue, implemented with turns: requests are added, started and completed by separate calls."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fairlead.app.job_commands import TRIES, JobCommands
from fairlead.app.runtime import Runtime
from fairlead.app.turns.context_manager import ended
from fairlead.app.turns.turns import Turns
from fairlead.app.turns.validation import user_of
from fairlead.app.turns.waiting import OnPosition
from fairlead.domain.config_checks import known
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.turns import TurnView
from fairlead.domain.validation import check_id
from fairlead.errors import InvalidInput, NotFound, TurnLost, Unavailable, UnknownFeature, WrongState


class TurnRequests:
    """The methods of ImageQueue's interface. A request is a turn; `model` is the name of its service."""

    def __init__(self, runtime: Runtime, turns: Turns, commands: JobCommands) -> None:
        self._runtime = runtime
        self._turns = turns
        self._commands = commands

    async def add(self, model: str, prompt: Any, user_id: object, request_id: str | None) -> str:
        if request_id is None:
            return (await self._turns.open(model, user_id, input={"prompt": prompt})).turn_id
        self._check_model(model)
        job, user = await self._find(request_id), user_of(user_id)
        if job is None or (job.service, job.user_id) != (model, user):
            raise NotFound(f"{model} has no request {request_id} of the user {user!r}")
        return (await self._turns.adopt(request_id)).turn_id

    async def next_pending(self, model: str) -> TurnView | None:
        self._check_model(model)
        for _ in range(TRIES):
            first = await self._turns.first(model)
            if first is None:
                return None
            with contextlib.suppress(NotFound):
                view = await self._turns.get(first)
                if view.status is JobStatus.PENDING:
                    return view
        raise Unavailable(f"the queue of {model} keeps changing; try again")

    async def try_start(self, request_id: str, model: str) -> bool:
        if await self._is_request(request_id, model):
            return await self._turns.start_if_first(request_id)
        return False

    async def position(self, request_id: str, model: str) -> int | None:
        return await self._turns.position(request_id) if await self._is_request(request_id, model) else None

    async def wait(self, request_id: str, model: str, on_position: OnPosition | None) -> None:
        if not await self._is_request(request_id, model):
            raise NotFound(f"{model} has no request {request_id}")
        view = await self._turns.wait(request_id, on_position=on_position, take_over=False)
        if view.status is not JobStatus.RUNNING:
            raise ended(view)
        if not self._turns.held_here(request_id):
            raise TurnLost("another process has started the request", turn_id=request_id)

    async def complete(self, request_id: str, image_path: Any) -> None:
        async with self._unless_ended(request_id) as ended:
            if not ended:
                await self._turns.finish(request_id, {"image_path": image_path})

    async def fail(self, request_id: str, message: str) -> None:
        async with self._unless_ended(request_id) as ended:
            if not ended:
                await self._turns.fail(request_id, message)

    async def remove(self, request_id: str) -> None:
        if (job := await self._find(request_id)) is None:
            return
        if not job.status.finished:
            await self._turns.withdraw(request_id)
        with contextlib.suppress(NotFound):
            await self._commands.delete(request_id)

    async def _find(self, request_id: str) -> Job | None:
        self._runtime.require_open()
        try:
            return await self._turns.find(check_id(request_id, "request"))
        except InvalidInput:
            return None  # malformed ids never match a request

    @asynccontextmanager
    async def _unless_ended(self, request_id: str) -> AsyncIterator[bool]:
        """Yield True if the request is over: it has ended, or it does not exist. The block runs either way and checks
        this value. Its WrongState, TurnLost and NotFound are suppressed if the request is over by then."""
        try:
            yield await self._has_ended(request_id)
        except (WrongState, TurnLost, NotFound):
            if not await self._has_ended(request_id):
                raise

    async def _has_ended(self, request_id: str) -> bool:
        job = await self._find(request_id)
        return job is None or job.status.finished

    async def _is_request(self, request_id: str, model: str) -> bool:
        self._check_model(model)
        job = await self._find(request_id)
        return job is not None and job.service == model

    def _check_model(self, model: str) -> None:
        services = self._runtime.config.services
        if model not in services:
            raise UnknownFeature(f"no service is called {model!r}; {known(services)}", pointer="/model")
