"""`/metrics` for Prometheus. The engine keeps plain counters; at each scrape this module turns them into metric
families.

Users cannot choose label values: services, features, shards and loops come from the configuration.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.domain.model_stats import ModelStats
from fairlead.domain.stats import SECONDS, Histogram
from fairlead.errors import NotFound
from fairlead.gateway.openapi import documented
from fairlead.gateway.problems import MethodNotAllowed
from fairlead.gateway.request_middleware import RequestMiddleware
from fairlead.observe.status import BAND_NAMES
from fairlead.pacing import CachedQuery, DutyCycle
from fairlead.version import __version__

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead
    from fairlead.dispatch.port import ServiceSnapshot
    from fairlead.engine.node import Node
    from fairlead.observe.stats import BudgetUse, MetricsSnapshot, QueueMetrics

PATH = "/metrics"
KEEP_S = 1.0
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of one metric, as listed in docs/metrics.md. The name of a counter gets the suffix `_total` when
    it is exported."""

    kind: type[Family]
    help: str
    labels: Labels = ()


COUNTER, GAUGE, HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
METRICS: dict[str, Definition] = {
    # Counters of this process.
    "fairlead_info": Definition(GAUGE, "Always 1; the version is a label.", ("version",)),
    "fairlead_jobs_accepted": Definition(COUNTER, "Jobs accepted by this process.", ("feature", "band")),
    "fairlead_jobs_ended": Definition(COUNTER, "Jobs ended by this process.", ("feature", "status")),
    "fairlead_wait_seconds": Definition(
        HISTOGRAM, "Seconds from queueing to the start of a step.", ("service", "band")
    ),
    "fairlead_run_seconds": Definition(HISTOGRAM, "Duration of calls, including failed ones.", ("service", "band")),
    "fairlead_first_token_seconds": Definition(
        HISTOGRAM, "Seconds from a streamed call to its first token.", ("service", "model")
    ),
    "fairlead_model_tokens": Definition(
        COUNTER, "Tokens that models read and wrote.", ("service", "model", "direction")
    ),
    "fairlead_model_seconds": Definition(COUNTER, "Seconds in which models wrote tokens.", ("service", "model")),
    "fairlead_retries": Definition(COUNTER, "Failed calls that are retried.", ("service",)),
    "fairlead_failures": Definition(COUNTER, "Failed calls and waits, by error code.", ("service", "code")),
    "fairlead_webhook_requests": Definition(COUNTER, "Requests to receivers of webhooks, by result.", ("result",)),
    "fairlead_promotions": Definition(COUNTER, "Promoted jobs, by new band.", ("band",)),
    "fairlead_late_results": Definition(COUNTER, "Results refused because the job had moved on.", ("shard",)),
    "fairlead_calls_running": Definition(GAUGE, "Running calls of this process.", ("shard",)),
    "fairlead_event_loop_blocked": Definition(COUNTER, "Times the event loop was blocked for over 1 s."),
    "fairlead_leases_expired": Definition(
        COUNTER, "Leases that expired because the worker stopped renewing.", ("shard",)
    ),
    "fairlead_steps_recovered": Definition(COUNTER, "Steps recovered from dead workers.", ("shard",)),
    "fairlead_rebuilds": Definition(COUNTER, "Rebuilds of the queue from the database.", ("shard",)),
    "fairlead_leading": Definition(GAUGE, "1 if this manager leads the shard.", ("shard",)),
    "fairlead_leader_term": Definition(GAUGE, "Term of the leader, reported by the leader.", ("shard",)),
    "fairlead_loop_moved": Definition(COUNTER, "Jobs moved by the manager's loops.", ("shard", "loop")),
    "fairlead_loop_failures": Definition(COUNTER, "Failed ticks of the manager's loops.", ("shard", "loop")),
    "fairlead_commit_transitions": Definition(HISTOGRAM, "Transitions per commit."),
    "fairlead_commit_seconds": Definition(HISTOGRAM, "Duration of commits."),
    "fairlead_commits_failed": Definition(COUNTER, "Failed commits, counting each attempt."),
    "fairlead_journal_pending": Definition(GAUGE, "Transitions waiting for their commit."),
    "fairlead_watchers": Definition(GAUGE, "Open event streams of this process."),
    "fairlead_files_saved": Definition(COUNTER, "Files saved by this process."),
    "fairlead_files_saved_bytes": Definition(COUNTER, "Bytes of these files."),
    "fairlead_files_read": Definition(COUNTER, "Files read by this process."),
    "fairlead_objects_removed": Definition(COUNTER, "Objects that the sweep removed."),
    "fairlead_object_store_errors": Definition(COUNTER, "Operations that the object store refused."),
    "fairlead_object_store_up": Definition(GAUGE, "0 if the last operation on the object store failed."),
    "fairlead_estimates": Definition(COUNTER, "Estimated waits compared with the actual wait.", ("service",)),
    "fairlead_estimates_within_ratio": Definition(
        GAUGE, "Share of recent waits within the estimated range.", ("service",)
    ),
    "fairlead_estimates_close_ratio": Definition(
        GAUGE, "Share of recent waits within the range, or off by at most a quarter or 1 s.", ("service",)
    ),
    "fairlead_estimates_median_error": Definition(GAUGE, "Median error as a share of the actual wait.", ("service",)),
    "fairlead_priority_decisions": Definition(COUNTER, "Accepted jobs, by the source of their priority.", ("source",)),
    "fairlead_priority_questions": Definition(COUNTER, "Calls of the priority hook and service."),
    "fairlead_priority_resting": Definition(
        GAUGE, "1 while the source is not called after repeated failures.", ("source",)
    ),
    "fairlead_budget_turned_back": Definition(
        COUNTER, "Jobs that a spent budget has held, demoted or refused.", ("action",)
    ),
    # State of the queue.
    "fairlead_reachable": Definition(GAUGE, "1 if the component responded.", ("part",)),
    "fairlead_slots_limit": Definition(GAUGE, "Concurrent calls that a service allows.", ("service",)),
    "fairlead_slots_in_use": Definition(GAUGE, "Slots in use, including held ones.", ("service",)),
    "fairlead_rate_limit": Definition(GAUGE, "What a rate allows in a window.", ("service", "of", "name", "unit")),
    "fairlead_rate_used": Definition(GAUGE, "What a rate counts now.", ("service", "of", "name", "unit")),
    "fairlead_upstream_resting": Definition(
        GAUGE, "Seconds for which an upstream takes no calls, as it said.", ("service", "of", "name")
    ),
    "fairlead_budget_amount": Definition(GAUGE, "What a shared budget allows in a window.", ("budget", "measure")),
    "fairlead_budget_used": Definition(GAUGE, "What calls of this window have used.", ("budget", "measure")),
    "fairlead_budget_reserved": Definition(
        GAUGE, "What calls under way are expected to use of it.", ("budget", "measure")
    ),
    "fairlead_budget_held_jobs": Definition(GAUGE, "Jobs that wait for a budget's next window.", ("budget",)),
    "fairlead_slots_held": Definition(GAUGE, "Slots held for calls of dead workers.", ("service",)),
    "fairlead_paused": Definition(GAUGE, "1 while the service is paused.", ("service",)),
    "fairlead_waiting": Definition(GAUGE, "Queued steps.", ("service", "band")),
    "fairlead_oldest_waiting_seconds": Definition(GAUGE, "Age of the oldest waiting job.", ("band",)),
    "fairlead_webhooks_waiting": Definition(GAUGE, "Webhook deliveries that wait to be sent, or sent again."),
    "fairlead_webhook_endpoints_disabled": Definition(GAUGE, "Disabled webhook endpoints."),
    "fairlead_outbox_rows": Definition(GAUGE, "Changes not yet applied to the queue."),
    "fairlead_outbox_age_seconds": Definition(GAUGE, "Age of the oldest such change."),
    "fairlead_database_bytes": Definition(GAUGE, "Size of the database."),
    "fairlead_leader_scanned": Definition(COUNTER, "Jobs that the leader's loops found to be due.", ("shard", "loop")),
    "fairlead_leader_queued": Definition(COUNTER, "Jobs that the leader's loops moved.", ("shard", "loop")),
    "fairlead_leader_failed": Definition(COUNTER, "Failed ticks of the leader's loops.", ("shard", "loop")),
    "fairlead_schedule_latency_seconds": Definition(
        HISTOGRAM, "Seconds from `scheduled_at` until the leader queued the job.", ("shard",)
    ),
}

SCORES = {
    "fairlead_estimates": "count",
    "fairlead_estimates_within_ratio": "within_range",
    "fairlead_estimates_close_ratio": "close",
    "fairlead_estimates_median_error": "median_error",
}

Sample = tuple[Labels, float | Histogram]


class Collector:
    """Yields the metrics of the last snapshot."""

    def __init__(self) -> None:
        self.snapshot: MetricsSnapshot | None = None

    def collect(self) -> Iterator[Metric]:
        if self.snapshot is None:
            return
        for name, samples in samples_of(self.snapshot).items():
            yield _family(name, samples)


def samples_of(snapshot: MetricsSnapshot) -> dict[str, list[Sample]]:
    """The samples of each metric in a snapshot."""
    return {**_of_process(snapshot), **_of_queues(snapshot.queues)}


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    definition = METRICS[name]
    family = definition.kind(name, definition.help, labels=definition.labels)
    for labels, value in samples:
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Histogram)
            family.add_metric(labels, _buckets(value), value.total)
        else:
            family.add_metric(labels, value)  # type: ignore[arg-type]
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the buckets of a histogram with cumulative counts, as Prometheus expects them."""
    buckets, sum_of_counts = [], 0
    bounds = [*(f"{float(bound)}" for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, list(histogram.counts), strict=True):
        sum_of_counts += count
        buckets.append((bound, float(sum_of_counts)))
    return buckets


def _one(value: float | Histogram) -> list[Sample]:
    return [((), value)]


def _by_labels(values: Mapping[Any, float | Histogram]) -> list[Sample]:
    """Return one sample per entry of a mapping from labels to values. A key is one label or a tuple of labels. The
    mapping is copied first, because it may change meanwhile."""
    return [
        (tuple(map(str, key)) if isinstance(key, tuple) else (str(key),), value) for key, value in dict(values).items()
    ]


def _of_process(snapshot: MetricsSnapshot) -> dict[str, list[Sample]]:
    counters, group_commit, priorities = snapshot.counters, snapshot.group_commit, snapshot.priorities
    return {
        "fairlead_info": [((__version__,), 1)],
        "fairlead_jobs_accepted": _by_labels(counters.accepted),
        "fairlead_jobs_ended": _by_labels(counters.ended),
        "fairlead_wait_seconds": _by_labels(counters.waits),
        "fairlead_run_seconds": _by_labels(counters.runs),
        "fairlead_retries": _by_labels(counters.retries),
        **_of_models(counters.models),
        "fairlead_failures": _by_labels(counters.failures),
        "fairlead_promotions": _by_labels(counters.promotions),
        "fairlead_webhook_requests": _by_labels(counters.webhooks),
        "fairlead_budget_turned_back": _by_labels(counters.turned_back),
        **_of_budgets(snapshot.budgets),
        "fairlead_commit_transitions": _one(group_commit.commit_sizes),
        "fairlead_commit_seconds": _one(group_commit.commit_seconds),
        "fairlead_commits_failed": _one(group_commit.commits_failed),
        "fairlead_journal_pending": _one(group_commit.pending),
        "fairlead_watchers": _one(snapshot.watchers),
        "fairlead_files_saved": _one(snapshot.files.counts.saved),
        "fairlead_files_saved_bytes": _one(snapshot.files.counts.saved_bytes),
        "fairlead_files_read": _one(snapshot.files.counts.read),
        "fairlead_objects_removed": _one(snapshot.files.counts.removed),
        "fairlead_object_store_errors": _one(snapshot.files.counts.refused),
        "fairlead_object_store_up": _one(int(snapshot.files.outage.reason is None)),
        "fairlead_priority_decisions": _by_labels(priorities.decided),
        "fairlead_priority_questions": _one(priorities.questions),
        "fairlead_priority_resting": _by_labels(priorities.resting),
        **(_of_roles(snapshot.node) if snapshot.node is not None else {}),
    }


def _of_models(models: Mapping[tuple[str, str], ModelStats]) -> dict[str, list[Sample]]:
    found = dict(models)
    read = {(*key, "in"): stats.tokens_in for key, stats in found.items()}
    written = {(*key, "out"): stats.tokens_out for key, stats in found.items()}
    return {
        "fairlead_first_token_seconds": _by_labels({key: stats.first_tokens for key, stats in found.items()}),
        "fairlead_model_tokens": _by_labels({**read, **written}),
        "fairlead_model_seconds": _by_labels({key: stats.seconds for key, stats in found.items()}),
    }


def _of_roles(process: Node) -> dict[str, list[Sample]]:
    """Return the metrics of the workers and managers that run in this process."""
    workers = {name: shard.workers for name, shard in process.shards.items() if shard.workers}
    leaders = {name: shard.leader for name, shard in process.shards.items() if shard.leader is not None}
    terms = {shard: each.term for shard, each in leaders.items() if each.leading and each.term is not None}
    loops = {(shard, loop): counts for shard, of in process.counts().items() for loop, counts in of.items()}
    scores = process.scores.report()
    recovered = {shard: loops[shard, "recover"] for shard in leaders}
    return {
        "fairlead_late_results": _by_labels(
            {shard: sum(worker.late_results for worker in each) for shard, each in workers.items()}
        ),
        "fairlead_calls_running": _by_labels(
            {shard: sum(worker.running for worker in each) for shard, each in workers.items()}
        ),
        "fairlead_event_loop_blocked": _one(sum(shard.blocked_times for shard in process.shards.values())),
        "fairlead_leases_expired": _by_labels({shard: counts["scanned"] for shard, counts in recovered.items()}),
        "fairlead_steps_recovered": _by_labels({shard: counts["queued"] for shard, counts in recovered.items()}),
        "fairlead_rebuilds": _by_labels({shard: each.scopes.rebuild.count for shard, each in leaders.items()}),
        "fairlead_leading": _by_labels({shard: int(each.leading) for shard, each in leaders.items()}),
        "fairlead_leader_term": _by_labels(terms),
        "fairlead_loop_moved": _by_labels({key: counts["queued"] for key, counts in loops.items()}),
        "fairlead_loop_failures": _by_labels({key: counts["failed"] for key, counts in loops.items()}),
        **{name: _by_labels({service: each[key] for service, each in scores.items()}) for name, key in SCORES.items()},
    }


def _of_budgets(budgets: Sequence[BudgetUse]) -> dict[str, list[Sample]]:
    samples = {"fairlead_budget_held_jobs": _by_labels({each.budget: each.held for each in budgets})}
    for what in ("amount", "used", "reserved"):
        found = {(each.budget, each.measure): getattr(each, what) for each in budgets}
        samples[f"fairlead_budget_{what}"] = _by_labels({key: n for key, n in found.items() if n is not None})
    return samples


def _of_rates(services: Iterable[ServiceSnapshot]) -> dict[str, list[Sample]]:
    limits: dict[tuple[str, ...], float] = {}
    used: dict[tuple[str, ...], float] = {}
    resting: dict[tuple[str, ...], float] = {}
    for service in services:
        for use in service.rates:
            key = service.service, use.kind, use.name
            most = (None, None) if use.rate is None else (use.rate.requests, use.rate.units)
            for unit, limit, count in zip(("requests", "units"), most, (use.requests, use.units), strict=True):
                if limit is not None:
                    limits[*key, unit], used[*key, unit] = limit, count
            if use.resting_until is not None:
                resting[key] = max(0.0, use.resting_until - time.time())
    names = {"fairlead_rate_limit": limits, "fairlead_rate_used": used, "fairlead_upstream_resting": resting}
    return {name: _by_labels(values) for name, values in names.items()}


def _of_queues(queues: QueueMetrics | None) -> dict[str, list[Sample]]:
    if queues is None:
        return {}
    services = queues.rules.services
    in_use, held = dict.fromkeys(services, 0), dict.fromkeys(services, 0)
    waiting: dict[tuple[str, str], int] = {}
    for each in queues.services:
        # A service that is split over shards is reported as one.
        in_use[each.service] = in_use.get(each.service, 0) + each.in_use
        held[each.service] = held.get(each.service, 0) + each.held
        for band, count in each.waiting.items():
            key = each.service, BAND_NAMES[band]
            waiting[key] = waiting.get(key, 0) + count
    samples = {
        "fairlead_reachable": _by_labels({part: int(reached) for part, reached in queues.reachable.items()}),
        "fairlead_slots_limit": _by_labels({name: service.limit for name, service in services.items()}),
        "fairlead_paused": _by_labels({name: int(service.paused) for name, service in services.items()}),
        "fairlead_oldest_waiting_seconds": _by_labels(
            {name: queues.oldest_waiting.get(band, 0.0) for band, name in BAND_NAMES.items() if band}
        ),
    }
    samples |= _of_leaders(queues.loops)
    if queues.services:
        samples["fairlead_slots_in_use"] = _by_labels(in_use)
        samples["fairlead_slots_held"] = _by_labels(held)
        samples |= _of_rates(queues.services)
        samples["fairlead_waiting"] = _by_labels(waiting)
    for name, fact in (
        ("fairlead_outbox_rows", "outbox_rows"),
        ("fairlead_webhooks_waiting", "webhooks_waiting"),
        ("fairlead_webhook_endpoints_disabled", "webhooks_disabled"),
        ("fairlead_outbox_age_seconds", "outbox_age"),
        ("fairlead_database_bytes", "database_bytes"),
    ):
        if fact in queues.facts:
            samples[name] = _one(float(queues.facts[fact]))
    return samples


def _of_leaders(loops: Mapping[str, Any]) -> dict[str, list[Sample]]:
    each = {(shard, loop): counts for shard, of in loops.items() for loop, counts in of.items()}
    latencies = {shard: counts["latency"] for (shard, _), counts in each.items() if "latency" in counts}
    return {
        **{
            f"fairlead_leader_{what}": _by_labels({key: counts[what] for key, counts in each.items()})
            for what in ("scanned", "queued", "failed")
        },
        "fairlead_schedule_latency_seconds": _by_labels(
            {
                shard: Histogram.of_dict(SECONDS, latency)
                for shard, latency in latencies.items()
                if len(latency["buckets"]) == len(SECONDS) + 1  # otherwise the leader runs a release with other bounds
            }
        ),
    }


class Metrics:
    """The metrics registry of one application. It reads a snapshot at most once a second, and all scrapes within that
    second share the snapshot."""

    def __init__(self, app: Fairlead) -> None:
        self._collector = Collector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        self._snapshots = CachedQuery(app.readings, DutyCycle(share=1.0, every=KEEP_S))

    async def response(self, accept: str) -> Response:
        self._collector.snapshot = await self._snapshots.recent()
        # The library's own content negotiation echoes the Accept header, and fails on an invalid version.
        if OPENMETRICS in accept:
            text = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            media_type = openmetrics.CONTENT_TYPE_LATEST
        else:
            text, media_type = generate_latest(self._registry), PLAIN
        return Response(text, headers={"Content-Type": media_type})


router = APIRouter(tags=["operations"])


@router.get(
    PATH,
    summary="Metrics, for Prometheus",
    operation_id="metrics",
    description="See docs/metrics.md for the metrics. No label contains a user id.",
    responses={
        **documented(200, None, "The metrics."),
        200: {
            "description": "The metrics.",
            "content": {
                "text/plain": {
                    "schema": {"type": "string"},
                    "example": 'fairlead_waiting{service="image_gen",band="high"} 3.0\n',
                },
                OPENMETRICS: {"schema": {"type": "string"}},
            },
        },
    },
)
async def metrics(request: Request) -> Response:
    scraped: Metrics = request.app.state.metrics
    return await scraped.response(request.headers.get("accept", ""))


def metrics_app(app: Fairlead) -> ASGIApp:
    """Return the ASGI application that serves metrics on `--metrics-port`, in processes with or without a gateway. It
    requires no key."""
    scraped = Metrics(app)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if scope["path"] != PATH:
            raise NotFound(f"only GET {PATH} exists here")
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{PATH} supports GET and HEAD, not {scope['method']}", allow="GET, HEAD")
        response = await scraped.response(request.headers.get("accept", ""))
        await response(scope, receive, send)

    return RequestMiddleware(respond)
