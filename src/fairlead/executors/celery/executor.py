"""One service that is a Celery task: sent when its turn has come, waited for, and taken back when nobody wants it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson

from fairlead.domain.config import ServiceConfig
from fairlead.domain.retry import CONNECTION, PERMANENT, Failure
from fairlead.executors.celery.answers import outcome_of, tell_progress
from fairlead.executors.celery.errands import Errand
from fairlead.executors.celery.link import Link, Wait
from fairlead.executors.failure import failure_of, storable
from fairlead.executors.port import GIVEN_UP, Call, Success

log = logging.getLogger(__name__)

STOPS_WITHIN = 1.0
HEADER = "fairlead"


class CeleryExecutor:
    def __init__(self, config: ServiceConfig, link: Link, *, max_result: int) -> None:
        assert config.celery is not None
        self._task = config.celery
        self._queue = config.celery_queue
        self._raw = config.raw
        self._link = link
        self._max_result = max_result

    async def execute(self, call: Call) -> Success | Failure:
        try:
            errand = await self._link.errand_of(call.idempotency_key)
        except Exception as error:
            return _unsent(error)
        wait = self._link.wait_for(errand, lambda meta: tell_progress(call, meta))
        keeps_waiting = False
        try:
            sending = self._link.spawn(self._send(call, errand))
            try:
                # Sending is not stopped halfway: whether there is a task to take back must be known.
                await asyncio.shield(sending)
                return await self._outcome(wait)
            except asyncio.CancelledError as error:
                if error.args and error.args[0] in GIVEN_UP:
                    keeps_waiting = True
                    await self._take_back(call, wait, sending)
                raise
            except Exception as error:
                return _unsent(error)
        finally:
            if not keeps_waiting:
                self._link.wait_no_more(wait)

    async def _send(self, call: Call, errand: Errand) -> None:
        if errand.taken_over:
            log.info("job %s: its Celery task %s is under way already, and waited for", call.job_id, errand.task_id)
            return
        where = {} if self._queue is None else {"queue": self._queue}
        headers = {HEADER: _about(call)}
        await self._link.send(errand, self._task, self._kwargs(call), call.timeout, headers=headers, **where)

    def _kwargs(self, call: Call) -> dict[str, Any]:
        params = orjson.loads(call.params_json)
        if self._raw:
            return dict(params)
        return {"meta": call.meta, "payload": {"params": params, "context": orjson.loads(call.context_json)}}

    async def _outcome(self, wait: Wait) -> Success | Failure:
        said = await asyncio.shield(wait.ended)
        lost = isinstance(said, Failure)
        outcome = said if isinstance(said, Failure) else outcome_of(said, raw=self._raw, max_result=self._max_result)
        if isinstance(outcome, Failure):
            # A lost task may come back from the broker; by then it is another attempt's turn.
            await self._forgotten(wait.errand, revoke=lost)
        return outcome

    async def _forgotten(self, errand: Errand, *, revoke: bool) -> bool:
        try:
            return await self._link.give_up(errand, revoke=revoke)
        except Exception as error:
            log.warning("the Celery task %s cannot be given up: %s", errand.task_id, error)
            return True

    # ------------------------------------------------------------ taking it back

    async def _take_back(self, call: Call, wait: Wait, sending: asyncio.Task[None]) -> None:
        """Most tasks stop at once. One that cannot (in a thread, say) keeps its slot until it ends."""
        stopping = self._link.spawn(self._stop(call, wait, sending))
        done, _ = await asyncio.wait([stopping], timeout=STOPS_WITHIN)
        if not done:
            call.lingering = stopping

    async def _stop(self, call: Call, wait: Wait, sending: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([sending])
            if sending.exception() is not None or not await self._forgotten(wait.errand, revoke=True):
                return
            ended, _ = await asyncio.wait([wait.ended], timeout=STOPS_WITHIN)
            # What is not active waits in the broker, where workers will throw it away: it takes no slot of theirs.
            if not ended and await self._link.is_active(wait.errand.task_id):
                await asyncio.wait([wait.ended], timeout=call.timeout)
        except Exception as error:
            log.warning("whether the Celery task %s has stopped is not known: %s", wait.errand.task_id, error)
        finally:
            self._link.wait_no_more(wait)

    async def close(self) -> None:
        await self._link.close()


def _about(call: Call) -> dict[str, Any]:
    """What a task finds in `self.request.fairlead`."""
    return {**call.meta, "user_id": call.user_id, "idempotency_key": call.idempotency_key}


def _unsent(error: Exception) -> Failure:
    from kombu.exceptions import EncodeError, OperationalError
    from redis.exceptions import RedisError

    said = storable(f"{type(error).__name__}: {error}")
    if isinstance(error, EncodeError):
        return Failure(PERMANENT, said, retryable=False)
    if isinstance(error, OperationalError | RedisError | OSError):
        return Failure(CONNECTION, said, retryable=True)
    return failure_of(error)
