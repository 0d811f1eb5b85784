"""Exports the metrics of `/metrics` with OpenTelemetry, if its environment variables ask for it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fairlead.app.telemetry import metric_exporter, resource_attributes
from fairlead.domain.stats import Histogram
from fairlead.engine.lifecycle import bounded, stopped
from fairlead.gateway.metrics import COUNTER, METRICS, Sample, samples_of
from fairlead.outage import Outage
from fairlead.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData

    from fairlead.app.fairlead import Fairlead
    from fairlead.observe.stats import MetricsSnapshot

log = logging.getLogger("fairlead.metrics")

INTERVAL_MS = 60_000
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
TIMEOUT_MS = 10_000


@asynccontextmanager
async def exporting_metrics(app: Fairlead) -> AsyncIterator[None]:
    """Context manager that exports metrics at intervals until the block ends, and once at its end."""
    exporter = metric_exporter()
    if exporter is None:
        yield
        return
    export = OtlpMetrics(app, exporter)
    task = asyncio.create_task(export.run(_interval()), name="fairlead-otlp-metrics")
    try:
        yield
    finally:
        task.cancel()
        await stopped([task])
        await bounded("exporting the last metrics", export.once())
        await bounded("closing the exporter of metrics", asyncio.to_thread(exporter.shutdown))


class OtlpMetrics:
    def __init__(self, app: Fairlead, exporter: MetricExporter) -> None:
        from opentelemetry.sdk.resources import Resource

        self._app = app
        self._exporter = exporter
        self._resource = Resource.create(resource_attributes())
        self._began = time.time_ns()
        self._outage = Outage(log, "exporting metrics")

    async def run(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self.once()

    async def once(self) -> None:
        """Export the present values. A failure is logged: the next export has the same counters."""
        try:
            data = data_of(await self._app.readings(), self._resource, self._began, time.time_ns())
            await asyncio.to_thread(self._exporter.export, data, timeout_millis=TIMEOUT_MS)
        except Exception as error:
            self._outage.began(error)
        else:
            self._outage.ended()


def data_of(snapshot: MetricsSnapshot, resource: Any, began: int, now: int) -> MetricsData:
    """The metrics of a snapshot. Counters and histograms are cumulative since `began`, in nanoseconds."""
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [
        Metric(name, METRICS[name].help, "s" if name.endswith("_seconds") else "", _data(name, samples, began, now))
        for name, samples in samples_of(snapshot).items()
        if samples
    ]
    scope = ScopeMetrics(InstrumentationScope("fairlead", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _data(name: str, samples: list[Sample], began: int, now: int) -> Any:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        HistogramDataPoint,
        NumberDataPoint,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Histogram as OtlpHistogram

    points: list[Any] = []
    for labels, value in samples:
        attributes = dict(zip(METRICS[name].labels, labels, strict=True))
        if isinstance(value, Histogram):
            counts = list(value.counts)
            points.append(
                HistogramDataPoint(
                    attributes, began, now, sum(counts), value.total, counts, [*map(float, value.bounds)], 0.0, 0.0
                )
            )
        else:
            points.append(NumberDataPoint(attributes, began, now, value))
    cumulative = AggregationTemporality.CUMULATIVE
    if any(isinstance(value, Histogram) for _, value in samples):
        return OtlpHistogram(points, cumulative)
    return Sum(points, cumulative, is_monotonic=True) if METRICS[name].kind is COUNTER else Gauge(points)


def _interval() -> float:
    """Seconds between two exports."""
    try:
        return max(1.0, int(os.environ.get(INTERVAL) or INTERVAL_MS) / 1000)
    except ValueError:
        log.warning("%s must be a number of milliseconds; using %d", INTERVAL, INTERVAL_MS)
        return INTERVAL_MS / 1000
