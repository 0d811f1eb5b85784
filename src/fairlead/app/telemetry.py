"""Sets up OpenTelemetry from its standard environment variables, unless the application has set it up."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from uuid_utils import uuid4

from fairlead.domain.config import Config
from fairlead.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter

    from fairlead.engine.tracing import Tracing

log = logging.getLogger("fairlead.tracing")

MISSING = "%s asks for OpenTelemetry, which is not installed: pip install 'fairlead[otel]'"


def tracing_of(config: Config) -> Tracing | None:
    """What makes the spans of this process; None if no spans are wanted."""
    provider = _provider()
    if provider is None:
        return None
    from fairlead.engine.tracing import Tracing

    return Tracing(provider, frozenset(name for name, service in config.services.items() if service.remote))


def exporters_of(signal: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """The exporters that the environment names for `TRACES` or `METRICS`, such as `otlp`. Empty if the variables are
    not set: nothing is exported unless it is asked for."""
    environ = os.environ if environ is None else environ
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = environ.get(f"OTEL_{signal}_EXPORTER", "").strip()
    if named:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "none")]
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return ["otlp"] if any(environ.get(name) for name in endpoints) else []


def metric_exporter() -> MetricExporter | None:
    """The exporter for metrics that the environment asks for; None if it asks for none."""
    if not (names := exporters_of("METRICS")):
        return None
    try:
        if names[0] == "console":
            from opentelemetry.sdk.metrics.export import ConsoleMetricExporter

            return ConsoleMetricExporter()
        exporter: MetricExporter = _otlp("METRICS", "metric_exporter", "OTLPMetricExporter")
        return exporter
    except ImportError:
        log.warning(MISSING, "OTEL_METRICS_EXPORTER")
        return None


def resource_attributes() -> dict[str, Any]:
    """What describes this process, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say something else."""
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    service = {} if named else {"service.name": "fairlead"}
    return {**service, "service.version": __version__, "service.instance.id": _instance()}


@cache
def _instance() -> str:
    """The id of this process, so that counters of several processes are told apart."""
    return str(uuid4())


def _provider() -> Any:
    """The application's own provider of tracers; else the one that the environment asks for; else None."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    api = sys.modules.get("opentelemetry.trace")
    if api is not None and not isinstance(provider := api.get_tracer_provider(), api.ProxyTracerProvider):
        return provider
    names = exporters_of("TRACES")
    if not names:
        return None
    try:
        return _new_provider(names)
    except ImportError:
        log.warning(MISSING, "OTEL_TRACES_EXPORTER")
        return None


def _new_provider(names: list[str]) -> Any:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor

    provider = TracerProvider(resource=Resource.create(resource_attributes()))
    for name in names:
        if name == "console":
            provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        elif name == "otlp":
            provider.add_span_processor(BatchSpanProcessor(_otlp("TRACES", "trace_exporter", "OTLPSpanExporter")))
        else:
            log.warning("OTEL_TRACES_EXPORTER: %r is not known; known are otlp, console and none", name)
    # Handlers of this process export their own spans with it.
    trace.set_tracer_provider(provider)
    return provider


def _otlp(signal: str, module: str, name: str) -> Any:
    """A new exporter for the protocol that the environment names. The one for gRPC is a package of its own."""
    named = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    package = "grpc" if named == "grpc" else "http"
    return getattr(import_module(f"opentelemetry.exporter.otlp.proto.{package}.{module}"), name)()
