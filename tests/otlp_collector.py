"""A collector of OpenTelemetry on a free port of loopback: it keeps the spans and metrics that processes export."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.loopback import loopback

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Exported:
    """A span as it arrived. Ids are hexadecimal text; `process` tells the processes apart that exported spans."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    began: int
    ended: int
    error: str | None
    attributes: Mapping[str, Any]
    process: str


@dataclass
class Collector:
    url: str = ""
    spans: list[Exported] = field(default_factory=list)
    metrics: dict[str, list[tuple[dict[str, Any], Any]]] = field(default_factory=dict)
    """The last values of each metric: attributes and data point."""
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def take_traces(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            described = _values(resource.resource.attributes)
            process = f"{described.get('service.name')}:{described.get('service.instance.id')}"
            for scope in resource.scope_spans:
                self.spans += [_exported(span, process) for span in scope.spans]
        return await self._answer()

    async def take_metrics(self, request: web.Request) -> web.Response:
        message = ExportMetricsServiceRequest.FromString(await request.read())
        for resource in message.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = getattr(metric, metric.WhichOneof("data")).data_points
                    self.metrics[metric.name] = [(_values(point.attributes), point) for point in points]
        return await self._answer()

    async def _answer(self) -> web.Response:
        async with self._came:
            self._came.notify_all()
        return web.Response(content_type="application/x-protobuf")

    async def until(self, what: Callable[[], Any]) -> Any:
        """The first true value of `what`, which is called after each export."""
        found: Any = None

        def found_it() -> bool:
            nonlocal found
            found = what()
            return bool(found)

        try:
            async with asyncio.timeout(PATIENCE_S), self._came:
                await self._came.wait_for(found_it)
        except TimeoutError:
            raise AssertionError(f"only: {[(span.name, dict(span.attributes)) for span in self.spans]}") from None
        return found

    def named(self, name: str, **attributes: Any) -> list[Exported]:
        """The spans with this name and these attributes, whose dots are underscores here."""
        return [
            span
            for span in self.spans
            if span.name == name
            and all(span.attributes.get(key.replace("_", ".")) == value for key, value in attributes.items())
        ]


def _exported(span: Any, process: str) -> Exported:
    return Exported(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.message if span.status.code == 2 else None,
        _values(span.attributes),
        process,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    this = Collector()
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_post("/v1/traces", this.take_traces)
    app.router.add_post("/v1/metrics", this.take_metrics)
    async with loopback(app) as this.url:
        yield this
