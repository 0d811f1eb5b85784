"""What runs a step: a function, an HTTP endpoint, a Celery task.

It gets a `Call` and answers with a `Success` or a `Failure`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from fairlead.domain.records import record
from fairlead.domain.retry import Failure
from fairlead.domain.wire import NotJson, to_json

TIMED_OUT, CANCELLED = "timed out", "cancelled"
GIVEN_UP = frozenset({TIMED_OUT, CANCELLED})

Report = Callable[[dict[str, Any]], None]


class Call:
    """One call of one service by a job: everything a handler needs.

    `params` is the job's input, `context` the results of its earlier steps by key (`step_0_prompt_enhancer`). The
    `idempotency_key` is the same for all attempts of this step, so that an endpoint can make the call exactly once.
    """

    def __init__(
        self,
        *,
        job_id: str,
        step_index: int,
        total_steps: int,
        service: str,
        feature_name: str,
        user_id: str,
        attempt: int,
        idempotency_key: str,
        params_json: str,
        context_json: str,
        timeout: float,
        region: str | None = None,
        report: Report | None = None,
    ) -> None:
        self.job_id = job_id
        self.step_index = step_index
        self.total_steps = total_steps
        self.service = service
        self.feature_name = feature_name
        self.user_id = user_id
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self.params_json = params_json
        self.context_json = context_json
        self.timeout = timeout
        self.region = region
        self._report = report
        self._params: dict[str, Any] | None = None
        self._context: dict[str, Any] | None = None
        # Set when the call was given up but its thread or process cannot be stopped: the slot is free when it is done.
        self.lingering: asyncio.Future[Any] | None = None

    # Read when they are asked for, and once: a handler may keep something in them. A `cached_property` takes a lock.

    @property
    def params(self) -> dict[str, Any]:
        if self._params is None:
            self._params = orjson.loads(self.params_json)
        return self._params

    @property
    def context(self) -> dict[str, Any]:
        if self._context is None:
            self._context = orjson.loads(self.context_json)
        return self._context

    @property
    def meta(self) -> dict[str, Any]:
        """What a service elsewhere is told about the call."""
        return {
            "job_id": self.job_id,
            "step_index": self.step_index,
            "service_name": self.service,
            "attempt": self.attempt,
        }

    def result_of(self, service: str) -> Any:
        """The data that an earlier step's service returned; KeyError if it is not among the earlier steps."""
        for key, entry in reversed(self.context.items()):
            if key.split("_", 2)[2] == service:
                return entry["data"]
        raise KeyError(service)

    def progress(self, fraction: float | None = None, message: str | None = None, **details: Any) -> None:
        """Tell whoever watches how far this step is, from 0 to 1. Never blocks; may be called from any thread."""
        said: dict[str, Any] = {}
        if fraction is not None:
            said["fraction"] = min(1.0, max(0.0, float(fraction)))
        if message is not None:
            said["message"] = str(message)[:500].encode("utf-8", "replace").decode()
        try:
            to_json(details)
            said = {**details, **said}
        except NotJson as error:
            raise ValueError(f"the details of a progress report must be JSON: {error}") from None
        if self._report is not None:
            self._report(said)


@record
class Success:
    """`metrics` are what the service measured, if it said so."""

    data_json: str
    metrics: Mapping[str, Any] | None = None


class Executor(Protocol):
    async def execute(self, call: Call) -> Success | Failure:
        """Run it. Being cancelled means: stop, or set `call.lingering` to what cannot be stopped. A cancellation whose
        message is in `GIVEN_UP` means that nobody wants its result any more; any other leaves the call to whoever takes
        the job up again."""
        ...

    async def close(self) -> None: ...
