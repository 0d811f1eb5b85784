"""The served OpenAPI document is correct: schemathesis generates valid and invalid requests from it, and checks that
the document lists every response.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events
from schemathesis.engine.recorder import ScenarioRecorder

from fairlead.app.fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.gateway import request_parsing
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import TURNS, Gate, declare_services, served

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "3"))
IS_LONG = "FUZZ_EXAMPLES" in os.environ
ADMIN_KEY = "an-admin-key-of-some-length-for-the-fuzzer"
PHASES = {"examples", "coverage", "fuzzing", "stateful"}
FEATURES = ("full_pipeline", "text_only", "echo", "gated", "broken", "flaky")
SUCCEED_BY_EXAMPLE = {
    "POST /api/v1/jobs",
    "POST /api/v1/jobs/bulk",
    "POST /api/v1/batches",
}
MUST_SUCCEED = {
    *SUCCEED_BY_EXAMPLE,
    "POST /api/v1/turns",
    "GET /api/v1/jobs/{job_id}/events",
    "POST /admin/services/{service}/pause",
    "PUT /admin/services/{service}/limit",
}


@schemathesis.serializer("application/x-ndjson")
def lines(context: Any, value: Any) -> bytes:
    """A body of JSON Lines is text in the document."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.mark.slow
@pytest.mark.timeout(480 + 10 * EXAMPLES)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("key", [None, ADMIN_KEY], ids=["without keys", "with an admin key"])
def test_every_response_matches_the_document(tmp_path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parsing, "MAX_WAIT", 1)
    monkeypatch.setenv("NETRC", os.devnull)  # or `requests` would look for two files before each request
    with serving(tmp_path, key) as url:
        run = Run(url, key)
        run.execute()
    assert not run.failures, "\n\n".join(run.failures.values())
    assert run.phases == run.expected_phases
    assert run.answers.keys() == run.operations, "some operations were never called"
    succeeded = {operation for operation, statuses in run.answers.items() if any(s < 300 for s in statuses)}
    expected = MUST_SUCCEED if "coverage" in run.phases else SUCCEED_BY_EXAMPLE
    assert succeeded >= expected, "all requests were refused there, which proves little"


class Run:
    """All phases against one server, and their findings: one failure of each kind per operation."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # The thousands of requests of this phase are always the same, and a key changes few of the responses.
        self.expected_phases = PHASES if key or IS_LONG else PHASES - {"coverage"}
        config = SchemathesisConfig.from_dict(
            {
                "seed": random.randrange(1 << 32),
                "headers": headers,
                # The events of a job end with the job, which may never happen.
                "max-stream-events": 1,
                "request-timeout": 30,
                "generation": {"max-examples": EXAMPLES, "database": "none"},
                "phases": {"coverage": {"enabled": "coverage" in self.expected_phases}},
                # There is no TLS here, but `requests` would look for the certificates before each request.
                "tls-verify": False,
                "checks": {
                    # A schema cannot express which cursors, features and Idempotency-Keys exist.
                    "positive_data_acceptance": {"enabled": False},
                    # 413 is one of them: some generated bodies have megabytes.
                    "negative_data_rejection": {"expected-statuses": ["4xx"]},
                },
            }
        )
        self._schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config, headers=headers)
        if key is None:
            # The first key would end keyless access.
            self._schema = self._schema.exclude(path="/admin/keys", method="POST")
        self._schema.hook(map_body)
        self._schema.hook(map_path_parameters)
        self.operations = {found.ok().label for found in self._schema.get_all_operations()}
        self.phases: set[str] = set()
        self.answers: dict[str, set[int]] = defaultdict(set)
        self.failures: dict[str, str] = {}

    def execute(self) -> None:
        for event in engine.from_schema(self._schema).execute():
            match event:
                case events.PhaseFinished(phase=phase) if phase.is_enabled:
                    self.phases |= {phase.name.value} & PHASES
                case events.ScenarioFinished(recorder=recorder):
                    self._look_at(recorder)
                case events.NonFatalError():
                    self.failures[event.label] = f"{event.label}: {event.info.message}"
                case events.FatalError(exception=error):
                    raise error

    def _look_at(self, recorder: ScenarioRecorder) -> None:
        for case_id, exchange in recorder.interactions.items():
            if exchange.response is not None:
                self.answers[recorder.cases[case_id].value.operation.label].add(exchange.response.status_code)
        for case_id, checks in recorder.checks.items():
            operation = recorder.cases[case_id].value.operation.label
            for check in checks:
                if check.failure_info is not None:
                    failure = check.failure_info.failure
                    text = f"{operation}: {failure.title}\n{failure.message}\n{check.failure_info.code_sample}"
                    self.failures.setdefault(f"{operation} {check.name}", text)


def map_body(context: Any, body: Any) -> Any:
    """Replace most random features by existing ones; otherwise hardly any job would be accepted."""
    jobs = body.get("jobs", [body]) if isinstance(body, dict) else []
    for job in jobs if isinstance(jobs, list) else []:
        name = job.get("feature_name") if isinstance(job, dict) else None
        if isinstance(name, str) and 1 <= len(name) <= 63 and sum(map(ord, name)) % 8 < len(FEATURES):
            job["feature_name"] = FEATURES[sum(map(ord, name)) % 8]
    service = body.get("service") if isinstance(body, dict) else None
    if isinstance(service, str) and 1 <= len(service) <= 63 and sum(map(ord, service)) % 8:
        body["service"] = "slot"
    return body


def map_path_parameters(context: Any, parameters: Any) -> Any:
    """Replace most random services by ones that may be paused without blocking submits."""
    name = parameters.get("service") if isinstance(parameters, dict) else None
    if isinstance(name, str) and sum(map(ord, name)) % 4:
        parameters["service"] = ("gated", "shout")[len(name) % 2]
    return parameters


@contextmanager
def serving(folder: Path, admin_key: str | None) -> Iterator[str]:
    """The whole application behind a real server, on a loop in a thread: schemathesis is synchronous."""
    config = Config.model_validate({"services": TURNS})
    app = Fairlead(Settings(config, f"sqlite:///{folder}/jobs.db?synchronous=normal", admin_key))
    declare_services(app, Gate())
    app.pipeline("full_pipeline", ["echo", "shout"])
    app.pipeline("text_only", ["echo"])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fuzzed")
    thread.start()
    stack = AsyncExitStack()

    async def start() -> int:
        await stack.enter_async_context(app.running())
        return await stack.enter_async_context(served(create_gateway(app)))

    try:
        port = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
        yield f"http://localhost:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
