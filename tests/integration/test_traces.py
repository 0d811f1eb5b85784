"""One trace from the caller over gateway, worker and upstream to the webhook, as a collector receives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from aiohttp import web

from fairlead.client import AsyncClient
from tests.integration.cli_process import Up, running
from tests.loopback import loopback
from tests.openai_upstream import running_upstream
from tests.otlp_collector import Collector, Exported, collector
from tests.webhook_receiver import receiver

PROJECT = """
import asyncio

from opentelemetry import trace

from fairlead import Call, Fairlead

app = Fairlead()


def seen(call: Call):
    with trace.get_tracer("project").start_as_current_span(f"inside {call.service}"):
        return {"traceparent": call.traceparent}


@app.service(limit=4)
async def on_loop(call: Call):
    call.annotate({"picture.width": 512})
    return seen(call)


@app.service(limit=4)
def in_thread(call: Call):
    return seen(call)


@app.service(limit=4, run_in="process")
def in_process(call: Call):
    span = trace.get_current_span().get_span_context()
    return {"traceparent": call.traceparent, "current": f"{span.trace_id:032x}-{span.span_id:016x}"}


app.pipeline("three", ["on_loop", "in_thread", "in_process"])
"""
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
CONFIG = """
[webhooks]
allow_http = true
allow_private = true
[services.draw]
url = "{upstream}/draw"
limit = 2
lease_ttl = 2
backoff = [0]
hold_after_crash = 0
"""


@dataclass
class Studio:
    """An upstream whose first call hangs until its connection is closed."""

    url: str = ""
    got: list[dict[str, str]] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def draw(self, request: web.Request) -> web.Response:
        self.got.append({name.lower(): value for name, value in request.headers.items()})
        self.came.set()
        if len(self.got) == 1:
            await asyncio.Event().wait()
        return web.json_response({"status": "SUCCESS", "data": {"url": "a"}})


@asynccontextmanager
async def studio() -> AsyncIterator[Studio]:
    this = Studio()
    app = web.Application()
    app.router.add_post("/draw", this.draw)
    async with loopback(app, handler_cancellation=True) as this.url:
        yield this


def exporting(to: Collector, engines: dict[str, str], **more: str) -> dict[str, str]:
    return {
        **{name.upper(): url for name, url in engines.items()},
        "OTEL_EXPORTER_OTLP_ENDPOINT": to.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRICS_EXPORTER": "none",
        **more,
    }


def start(stack: ExitStack, engines: dict[str, str], folder: Path, env: dict[str, str]) -> tuple[Up, Up]:
    """The process that accepts jobs, and the one that calls the upstream."""
    if "redis_url" not in engines:
        both = stack.enter_context(running("up", folder, env=env))
        return both, both
    stack.enter_context(running("manager", folder, env=env))
    return stack.enter_context(running("api", folder, env=env)), stack.enter_context(running("worker", folder, env=env))


async def test_one_trace_from_the_caller_to_the_webhook_also_if_the_worker_is_killed(
    engines: dict[str, str], tmp_path: Path
) -> None:
    async with collector() as otlp, studio() as upstream, receiver() as hook:
        (tmp_path / "fairlead.toml").write_text(CONFIG.format(upstream=upstream.url))
        env = exporting(otlp, engines)
        with ExitStack() as stack:
            accepting, calling = await asyncio.to_thread(start, stack, engines, tmp_path, env)
            body = {"feature_name": "draw", "user_id": "ada", "webhook_url": hook.url}
            async with httpx2.AsyncClient(base_url=accepting.url) as http:
                response = await http.post("/api/v1/jobs", json=body, headers=CALLER)
            job_id = response.json()["job_id"]
            await upstream.came.wait()
            (submit,) = await otlp.until(lambda: otlp.named("submit draw"))
            calling.process.kill()
            again = "up" if accepting is calling else "worker"
            await asyncio.to_thread(stack.enter_context, running(again, tmp_path, env=env))
            await hook.reaches(1)
            await otlp.until(lambda: otlp.named("webhook job.completed"))
            calls = await otlp.until(lambda: two(otlp.named("call draw")))
    check_trace(otlp, submit, calls, upstream, hook.got[0].headers)
    assert {span.attributes.get("fairlead.job.id") for span in otlp.spans} == {job_id}
    if "redis_url" in engines:
        assert len({span.process for span in otlp.spans}) >= 3, "gateway, worker and manager"


def two(spans: list[Exported]) -> list[Exported]:
    return sorted(spans, key=lambda span: span.began) if len(spans) == 2 else []


def check_trace(otlp: Collector, submit: Exported, calls: list[Exported], upstream: Studio, received: Any) -> None:
    assert {span.trace_id for span in otlp.spans} == {TRACE}
    assert submit.parent_id == SPAN
    lost, done = calls
    assert [each.attributes["fairlead.outcome"] for each in (lost, done)] == ["lost", "success"]
    assert (lost.error, done.error) == ("WORKER_DIED", None)
    sent = [got["traceparent"].split("-")[2] for got in upstream.got]
    assert sent == [lost.span_id, done.span_id], "spans of the upstream have the call as their parent"
    assert {got["tracestate"] for got in upstream.got} == {"vendor=1"}
    waits, hooks = otlp.named("wait draw"), otlp.named("webhook job.completed")
    assert {span.parent_id for span in [*waits, *calls, *hooks]} == {submit.span_id}
    assert len(waits) == 2
    assert received["traceparent"].split("-")[2] == hooks[0].span_id
    assert submit.began <= lost.began <= lost.ended <= done.began <= done.ended


async def test_handlers_models_and_metrics_are_exported(embedded: dict[str, str], tmp_path: Path) -> None:
    async with collector() as otlp, running_upstream("small") as upstream:
        (tmp_path / "traced.py").write_text(PROJECT)
        (tmp_path / "fairlead.toml").write_text(f'[services.llama]\nlimit = 2\nopenai = "{upstream.url}"\n')
        env = exporting(otlp, embedded, OTEL_METRICS_EXPORTER="otlp", OTEL_METRIC_EXPORT_INTERVAL="1000")
        with ExitStack() as stack:
            process = running("up", tmp_path, "traced:app", env={**env, "OTEL_SERVICE_NAME": "studio"})
            up = await asyncio.to_thread(stack.enter_context, process)
            async with AsyncClient(up.url) as client:
                submitted = await client.submit("three", {}, user_id="ada")
                job = await client.wait(submitted.id)
            assert job.context is not None
            (submit,) = await otlp.until(lambda: otlp.named("submit three"))
            assert job.trace_id == submit.trace_id
            await check_handlers(otlp, [entry["data"] for entry in job.context.values()])
            chat = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}
            async with httpx2.AsyncClient(base_url=up.url) as http:
                assert (await http.post("/v1/chat/completions", json=chat, headers=CALLER)).status_code == 200
            await check_model(otlp, upstream.calls[-1].headers)
            ended = await otlp.until(lambda: otlp.metrics.get("fairlead_jobs_ended"))
            assert {attributes["feature"] for attributes, _ in ended} >= {"three"}
            (_, runs) = otlp.metrics["fairlead_run_seconds"][0]
            assert runs.count == sum(runs.bucket_counts)


async def check_handlers(otlp: Collector, results: list[dict[str, str]]) -> None:
    """The spans of handlers are children of their calls, on the loop, in threads and in processes."""
    calls = [
        (await otlp.until(lambda name=name: otlp.named(f"call {name}")))[0]
        for name in ("on_loop", "in_thread", "in_process")
    ]
    assert len({call.trace_id for call in calls}) == 1
    assert calls[0].attributes["picture.width"] == 512
    assert {call.process.partition(":")[0] for call in calls} == {"studio"}
    for call, result in zip(calls, results, strict=True):
        assert result["traceparent"].startswith(f"00-{call.trace_id}-{call.span_id}-")
    for call in calls[:2]:
        (inside,) = otlp.named(f"inside {call.attributes['fairlead.service']}")
        assert (inside.trace_id, inside.parent_id) == (call.trace_id, call.span_id)
    assert results[2]["current"] == f"{calls[2].trace_id}-{calls[2].span_id}"


async def check_model(otlp: Collector, sent: Any) -> None:
    (call,) = await otlp.until(lambda: otlp.named("chat small"))
    assert call.trace_id == TRACE
    assert sent["traceparent"].split("-")[2] == call.span_id
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.response.model": "small",
        "http.response.status_code": 200,
    }
    assert expected.items() <= call.attributes.items()
    assert call.attributes["gen_ai.usage.input_tokens"] > 0
