"""`/metrics`, for Prometheus: the runtime counts in plain numbers, and this turns them into families at each scrape.

No label is ever a user's choice: services, features, shards and loops are the operator's, all else is a fixed set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.domain.histogram import Histogram
from fairlead.errors import NotFound
from fairlead.gateway.frame import Frame
from fairlead.gateway.openapi import answers
from fairlead.gateway.problems import MethodNotAllowed
from fairlead.runtime.status import BAND_NAMES
from fairlead.version import __version__

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.runtime.process import Process
    from fairlead.runtime.readings import LineReadings, Readings

PATH = "/metrics"
KEEP_S = 1.0
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text"

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """One metric, as docs/metrics.md lists it. A counter's name gets `_total` behind it."""

    kind: type[Family]
    help: str
    labels: Labels = ()


COUNTER, GAUGE, HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
METRICS: dict[str, Known] = {
    # What this process did.
    "fairlead_info": Known(GAUGE, "1; the version is a label.", ("version",)),
    "fairlead_jobs_accepted": Known(COUNTER, "Jobs accepted here.", ("feature", "band")),
    "fairlead_jobs_ended": Known(COUNTER, "Jobs whose end was written here.", ("feature", "status")),
    "fairlead_wait_seconds": Known(HISTOGRAM, "From entering the line to the start, per step.", ("service", "band")),
    "fairlead_run_seconds": Known(HISTOGRAM, "How long calls took, also those that failed.", ("service", "band")),
    "fairlead_retries": Known(COUNTER, "Calls that failed and are tried again.", ("service",)),
    "fairlead_failures": Known(COUNTER, "Calls and waits that failed, by their error's code.", ("service", "code")),
    "fairlead_promotions": Known(COUNTER, "Waiting jobs promoted, by their new band.", ("band",)),
    "fairlead_late_results": Known(COUNTER, "Results refused because the job had moved on.", ("shard",)),
    "fairlead_calls_running": Known(GAUGE, "Calls under way in this process.", ("shard",)),
    "fairlead_event_loop_blocked": Known(COUNTER, "Times that something kept the event loop for over 1 s."),
    "fairlead_leases_expired": Known(COUNTER, "Leases whose worker stopped renewing them.", ("shard",)),
    "fairlead_steps_recovered": Known(COUNTER, "Steps taken back from workers that are gone.", ("shard",)),
    "fairlead_rebuilds": Known(COUNTER, "Times that the line was built from the truth.", ("shard",)),
    "fairlead_leading": Known(GAUGE, "1 if this manager leads the shard.", ("shard",)),
    "fairlead_leader_term": Known(GAUGE, "The term of the leader, told by itself.", ("shard",)),
    "fairlead_loop_moved": Known(COUNTER, "What the manager's loops moved.", ("shard", "loop")),
    "fairlead_loop_failures": Known(COUNTER, "Ticks of the manager's loops that failed.", ("shard", "loop")),
    "fairlead_commit_transitions": Known(HISTOGRAM, "Transitions in one commit."),
    "fairlead_commit_seconds": Known(HISTOGRAM, "How long commits took."),
    "fairlead_commits_failed": Known(COUNTER, "Commits that failed, each try counted."),
    "fairlead_journal_pending": Known(GAUGE, "Transitions that wait for their commit."),
    "fairlead_watchers": Known(GAUGE, "Readers of events, in this process."),
    "fairlead_estimates": Known(COUNTER, "Estimated waits held against what came true.", ("service",)),
    "fairlead_estimates_within_ratio": Known(GAUGE, "Of the last of them, how many lay in the range.", ("service",)),
    "fairlead_estimates_close_ratio": Known(GAUGE, "Or missed it by at most a quarter, or 1 s.", ("service",)),
    "fairlead_estimates_median_error": Known(GAUGE, "As a share of the wait that came true.", ("service",)),
    "fairlead_priority_decisions": Known(COUNTER, "Jobs accepted, by who said their priority.", ("source",)),
    "fairlead_priority_questions": Known(COUNTER, "Questions put to the priority hook and service."),
    "fairlead_priority_resting": Known(GAUGE, "1 while it failed so often that it is left alone.", ("source",)),
    # How the line is.
    "fairlead_reachable": Known(GAUGE, "1 if the part answered.", ("part",)),
    "fairlead_slots_limit": Known(GAUGE, "Calls that a service may have open.", ("service",)),
    "fairlead_slots_in_use": Known(GAUGE, "Slots taken, holds included.", ("service",)),
    "fairlead_slots_held": Known(GAUGE, "Slots kept for calls whose worker is gone.", ("service",)),
    "fairlead_paused": Known(GAUGE, "1 while the service is paused.", ("service",)),
    "fairlead_waiting": Known(GAUGE, "Steps in line.", ("service", "band")),
    "fairlead_oldest_waiting_seconds": Known(GAUGE, "Since when the job waits that waits longest.", ("band",)),
    "fairlead_outbox_rows": Known(GAUGE, "Changes that the line has not heard of."),
    "fairlead_outbox_age_seconds": Known(GAUGE, "The oldest of them."),
    "fairlead_database_bytes": Known(GAUGE, "The size of the database."),
}

SCORES = {
    "fairlead_estimates": "count",
    "fairlead_estimates_within_ratio": "within_range",
    "fairlead_estimates_close_ratio": "close",
    "fairlead_estimates_median_error": "median_error",
}

Sample = tuple[Labels, float | Histogram]


class Collector:
    """Tells what was read last."""

    def __init__(self) -> None:
        self.readings: Readings | None = None

    def collect(self) -> Iterator[Metric]:
        if self.readings is None:
            return
        told = {**_of_process(self.readings), **_of_line(self.readings.line)}
        for name, samples in told.items():
            yield _family(name, samples)


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    known = METRICS[name]
    family = known.kind(name, known.help, labels=known.labels)
    for labels, value in samples:
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Histogram)
            family.add_metric(labels, _buckets(value), value.total)
        else:
            family.add_metric(labels, value)  # type: ignore[arg-type]
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """As Prometheus counts: each includes those below it."""
    buckets, sum_of_counts = [], 0
    bounds = [*(f"{float(bound)}" for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, list(histogram.counts), strict=True):
        sum_of_counts += count
        buckets.append((bound, float(sum_of_counts)))
    return buckets


def _one(value: float | Histogram) -> list[Sample]:
    return [((), value)]


def _by_labels(values: Mapping[Any, float | Histogram]) -> list[Sample]:
    """Keys are one label, or a tuple of them. A copy: the hot path goes on counting in the same process."""
    return [
        (tuple(map(str, key)) if isinstance(key, tuple) else (str(key),), value) for key, value in dict(values).items()
    ]


def _of_process(readings: Readings) -> dict[str, list[Sample]]:
    seen, journal, priorities = readings.observations, readings.journal, readings.priorities
    return {
        "fairlead_info": [((__version__,), 1)],
        "fairlead_jobs_accepted": _by_labels(seen.accepted),
        "fairlead_jobs_ended": _by_labels(seen.ended),
        "fairlead_wait_seconds": _by_labels(seen.waits),
        "fairlead_run_seconds": _by_labels(seen.runs),
        "fairlead_retries": _by_labels(seen.retries),
        "fairlead_failures": _by_labels(seen.failures),
        "fairlead_promotions": _by_labels(seen.promotions),
        "fairlead_commit_transitions": _one(journal.commit_sizes),
        "fairlead_commit_seconds": _one(journal.commit_seconds),
        "fairlead_commits_failed": _one(journal.commits_failed),
        "fairlead_journal_pending": _one(journal.pending),
        "fairlead_watchers": _one(readings.watchers),
        "fairlead_priority_decisions": _by_labels(priorities.decided),
        "fairlead_priority_questions": _one(priorities.questions),
        "fairlead_priority_resting": _by_labels(priorities.resting),
        **(_of_roles(readings.process) if readings.process is not None else {}),
    }


def _of_roles(process: Process) -> dict[str, list[Sample]]:
    """What its workers and its managers counted."""
    workers = {shard: line.workers for shard, line in process.lines.items() if line.workers}
    leaders = {shard: line.leader for shard, line in process.lines.items() if line.leader is not None}
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
        "fairlead_event_loop_blocked": _one(sum(line.blocked_times for line in process.lines.values())),
        "fairlead_leases_expired": _by_labels({shard: counts["scanned"] for shard, counts in recovered.items()}),
        "fairlead_steps_recovered": _by_labels({shard: counts["queued"] for shard, counts in recovered.items()}),
        "fairlead_rebuilds": _by_labels({shard: each.scopes.rebuild.count for shard, each in leaders.items()}),
        "fairlead_leading": _by_labels({shard: int(each.leading) for shard, each in leaders.items()}),
        "fairlead_leader_term": _by_labels(terms),
        "fairlead_loop_moved": _by_labels({key: counts["queued"] for key, counts in loops.items()}),
        "fairlead_loop_failures": _by_labels({key: counts["failed"] for key, counts in loops.items()}),
        **{name: _by_labels({service: each[key] for service, each in scores.items()}) for name, key in SCORES.items()},
    }


def _of_line(line: LineReadings | None) -> dict[str, list[Sample]]:
    if line is None:
        return {}
    services = line.rules.services
    in_use, held = dict.fromkeys(services, 0), dict.fromkeys(services, 0)
    waiting: dict[tuple[str, str], int] = {}
    for each in line.snapshots:
        # A service that is split over shards is told as one.
        in_use[each.service] = in_use.get(each.service, 0) + each.in_use
        held[each.service] = held.get(each.service, 0) + each.held
        for band, count in each.waiting.items():
            key = each.service, BAND_NAMES[band]
            waiting[key] = waiting.get(key, 0) + count
    told = {
        "fairlead_reachable": _by_labels({part: int(reached) for part, reached in line.reachable.items()}),
        "fairlead_slots_limit": _by_labels({name: service.limit for name, service in services.items()}),
        "fairlead_paused": _by_labels({name: int(service.paused) for name, service in services.items()}),
        "fairlead_oldest_waiting_seconds": _by_labels(
            {name: line.oldest_waiting.get(band, 0.0) for band, name in BAND_NAMES.items() if band}
        ),
    }
    if line.snapshots:
        told["fairlead_slots_in_use"] = _by_labels(in_use)
        told["fairlead_slots_held"] = _by_labels(held)
        told["fairlead_waiting"] = _by_labels(waiting)
    for name, fact in (
        ("fairlead_outbox_rows", "outbox_rows"),
        ("fairlead_outbox_age_seconds", "outbox_age"),
        ("fairlead_database_bytes", "database_bytes"),
    ):
        if fact in line.facts:
            told[name] = _one(float(line.facts[fact]))
    return told


class Metrics:
    """The registry of one app, and of nothing else. However many scrape at once, the line is asked once a second at
    most."""

    def __init__(self, app: Fairlead) -> None:
        self._app = app
        self._collector = Collector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        self._taken_at: float | None = None
        self._taking = asyncio.Lock()

    async def answer(self, accept: str) -> Response:
        async with self._taking:
            if self._taken_at is None or monotonic() - self._taken_at >= KEEP_S:
                self._collector.readings = await self._app.readings()
                self._taken_at = monotonic()
        # The library's own choice repeats in the answer what the client wrote, and fails on a version that is none.
        if OPENMETRICS in accept:
            told = openmetrics.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            media_type = openmetrics.CONTENT_TYPE_LATEST
        else:
            told, media_type = generate_latest(self._registry), PLAIN
        return Response(told, headers={"Content-Type": media_type})


router = APIRouter(tags=["operations"])


@router.get(
    PATH,
    summary="Metrics, for Prometheus",
    operation_id="metrics",
    description="See docs/metrics.md for what is told. No label holds a user's id.",
    responses={
        **answers(200, None, "The metrics."),
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
    told: Metrics = request.app.state.metrics
    return await told.answer(request.headers.get("accept", ""))


def metrics_app(app: Fairlead) -> ASGIApp:
    """For `--metrics-port`: of a process that has no gateway, or beside it. It knows no keys."""
    told = Metrics(app)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if scope["path"] != PATH:
            raise NotFound(f"there is only GET {PATH} here")
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{PATH} knows GET and HEAD, not {scope['method']}", allow="GET, HEAD")
        response = await told.answer(request.headers.get("accept", ""))
        await response(scope, receive, send)

    return Frame(answer)
