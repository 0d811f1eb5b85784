"""The executor of a service that is a Celery task: sends the task, waits for its result, and revokes the task when the
call is abandoned."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson

from fairlead.domain.body_template import MissingField, filled
from fairlead.domain.config import ServiceConfig
from fairlead.domain.retry import CONNECTION, MISSING_FIELD, PERMANENT, Failure
from fairlead.domain.trace_context import headers_of
from fairlead.executors.call_outcome import failure_of, storable, with_output
from fairlead.executors.celery.celery_client import CeleryClient, RegisteredTask, Wait
from fairlead.executors.celery.results import outcome_of, report_progress
from fairlead.executors.port import GIVEN_UP, Call, Success

log = logging.getLogger("fairlead.celery")

STOPS_WITHIN = 1.0
HEADER = "fairlead"


class CeleryExecutor:
    def __init__(self, config: ServiceConfig, client: CeleryClient, *, max_result: int) -> None:
        assert config.celery is not None
        self._task = config.celery
        self._queue = config.celery_queue
        self._raw = config.raw
        self._template = config.body
        self._client = client
        self._max_result = max_result

    async def execute(self, call: Call) -> Success | Failure:
        try:
            kwargs = self._kwargs(call)
        except MissingField as error:
            return Failure(MISSING_FIELD, str(error), retryable=False)
        try:
            registered = await self._client.task_for(call.idempotency_key)
        except Exception as error:
            return _unsent(error)
        wait = self._client.wait_for(registered, lambda meta: report_progress(call, meta))
        keeps_waiting = False
        try:
            sending = self._client.spawn(self._send(call, registered, kwargs))
            try:
                # Shielded, because a cancelled call must know whether there is a task to revoke.
                await asyncio.shield(sending)
                outcome = await self._outcome(wait)
                return outcome if call.output is None else with_output(call.output, outcome)
            except asyncio.CancelledError as error:
                if error.args and error.args[0] in GIVEN_UP:
                    keeps_waiting = True
                    await self._take_back(call, wait, sending)
                raise
            except Exception as error:
                return _unsent(error)
        finally:
            if not keeps_waiting:
                self._client.stop_waiting(wait)

    async def _send(self, call: Call, registered: RegisteredTask, kwargs: dict[str, Any]) -> None:
        if registered.taken_over:
            log.info(
                "job %s: waiting for its Celery task %s, which is running already", call.job_id, registered.task_id
            )
            return
        where = {} if self._queue is None else {"queue": self._queue}
        headers = {HEADER: _request_fields(call), **headers_of(call.trace)}
        await self._client.send(registered, self._task, kwargs, call.timeout, headers=headers, **where)

    def _kwargs(self, call: Call) -> dict[str, Any]:
        if self._template is not None:
            return filled(self._template, call.params, call.context)
        params = orjson.loads(call.params_json)
        if self._raw:
            return dict(params)
        return {"meta": call.meta, "payload": {"params": params, "context": orjson.loads(call.context_json)}}

    async def _outcome(self, wait: Wait) -> Success | Failure:
        ended = await asyncio.shield(wait.ended)
        lost = isinstance(ended, Failure)
        outcome = ended if isinstance(ended, Failure) else outcome_of(ended, raw=self._raw, max_result=self._max_result)
        if isinstance(outcome, Failure):
            # Revoke a lost task: the broker might redeliver it while the next attempt runs.
            await self._give_up(wait.registered, revoke=lost)
        return outcome

    async def _give_up(self, registered: RegisteredTask, *, revoke: bool) -> bool:
        try:
            return await self._client.give_up(registered, revoke=revoke)
        except Exception as error:
            log.warning("cannot unregister the Celery task %s: %s", registered.task_id, error)
            return True

    # ------------------------------------------------------------ revoking

    async def _take_back(self, call: Call, wait: Wait, sending: asyncio.Task[None]) -> None:
        """Revoke the task. Most tasks then stop at once. The slot of a task that cannot be stopped, for example because
        it runs in a thread, stays taken until the task ends."""
        stopping = self._client.spawn(self._stop(call, wait, sending))
        done, _ = await asyncio.wait([stopping], timeout=STOPS_WITHIN)
        if not done:
            call.lingering = stopping

    async def _stop(self, call: Call, wait: Wait, sending: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([sending])
            if sending.exception() is not None or not await self._give_up(wait.registered, revoke=True):
                return
            ended, _ = await asyncio.wait([wait.ended], timeout=STOPS_WITHIN)
            # A task that is not active still waits in the broker. Workers discard it, so it needs no slot.
            if not ended and await self._client.is_active(wait.registered.task_id):
                await asyncio.wait([wait.ended], timeout=call.timeout)
        except Exception as error:
            log.warning("cannot find out whether the Celery task %s has stopped: %s", wait.registered.task_id, error)
        finally:
            self._client.stop_waiting(wait)

    async def close(self) -> None:
        await self._client.close()


def _request_fields(call: Call) -> dict[str, Any]:
    """The fields that the task finds in `self.request.fairlead`."""
    return {**call.meta, "user_id": call.user_id, "idempotency_key": call.idempotency_key}


def _unsent(error: Exception) -> Failure:
    from kombu.exceptions import EncodeError, OperationalError
    from redis.exceptions import RedisError

    message = storable(f"{type(error).__name__}: {error}")
    if isinstance(error, EncodeError):
        return Failure(PERMANENT, message, retryable=False)
    if isinstance(error, OperationalError | RedisError | OSError):
        return Failure(CONNECTION, message, retryable=True)
    return failure_of(error)
