"""The interface of executors: an executor makes a `Call` of a function, an endpoint or a task, and returns a `Success`
or a `Failure`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.json_codec import NotJson, to_json
from fairlead.domain.retry import Failure

TIMED_OUT, CANCELLED = "timed out", "cancelled"
GIVEN_UP = frozenset({TIMED_OUT, CANCELLED})

Report = Callable[[dict[str, Any]], None]


class Call:
    """One call of one service by a job: everything that a handler needs.

    `params` is the job's input. `context` has the results of the job's earlier steps by key, such as
    `step_0_prompt_enhancer`. `idempotency_key` is the same for all attempts of this step, so that an endpoint can do
    the work only once.
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
        # Set if an abandoned call cannot be stopped: its slot is freed when this future is done.
        self.lingering: asyncio.Future[Any] | None = None

    # `params` and `context` are parsed on first use and kept, since a handler may change them. A `cached_property`
    # would take a lock.

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
        """The fields that a remote service receives besides the input."""
        return {
            "job_id": self.job_id,
            "step_index": self.step_index,
            "service_name": self.service,
            "attempt": self.attempt,
        }

    def result_of(self, service: str) -> Any:
        """The data that this service returned in an earlier step of the job. Raises KeyError if no earlier step called
        this service."""
        for key, entry in reversed(self.context.items()):
            if key.split("_", 2)[2] == service:
                return entry["data"]
        raise KeyError(service)

    def progress(self, fraction: float | None = None, message: str | None = None, **details: Any) -> None:
        """Publish to watchers of the job how far this step is, from 0 to 1. Never blocks, and can be called from any
        thread."""
        fields: dict[str, Any] = {}
        if fraction is not None:
            fields["fraction"] = min(1.0, max(0.0, float(fraction)))
        if message is not None:
            fields["message"] = str(message)[:500].encode("utf-8", "replace").decode()
        try:
            to_json(details)
            fields = {**details, **fields}
        except NotJson as error:
            raise ValueError(f"the details of a progress report must be JSON: {error}") from None
        if self._report is not None:
            self._report(fields)


@fast_dataclass
class Success:
    """The result of a successful call. `metrics` are measurements that the service reported, if any."""

    data_json: str
    metrics: Mapping[str, Any] | None = None


class Executor(Protocol):
    async def execute(self, call: Call) -> Success | Failure:
        """Make the call. If the call is cancelled, stop the work. If the work cannot be stopped, set `call.lingering`
        to a future that is done when the work has ended.

        A cancellation with a message in `GIVEN_UP` means that the call is abandoned. After any other cancellation, for
        example at a shutdown, the work may continue, and the next worker may take it over.
        """
        ...

    async def close(self) -> None: ...
