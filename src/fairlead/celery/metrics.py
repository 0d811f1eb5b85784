"""For Prometheus: what the balancer knows, read at each scrape. `REGISTRY.register(LoadCollector(balancer))`.

Any one process will do: the numbers are of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.celery.balancer import LoadBalancer
from fairlead.celery.reconcile import REPAIRS
from fairlead.errors import Unavailable

PENDING = ("fairlead_celery_pending", "Tasks that wait in a queue.", ("queue",))
RUNNING = ("fairlead_celery_running", "Tasks of a queue that run.", ("queue",))
WORKERS = ("fairlead_celery_workers", "Workers that were heard of lately.", ())
REPAIRED = ("fairlead_celery_repairs", "Tasks and counters that reconcile passes put right.", ("kind",))
UP = ("fairlead_celery_up", "1 if Redis answered, else 0, and nothing else is told.", ())
GAUGES = (PENDING, RUNNING, WORKERS, UP)
COUNTERS = (REPAIRED,)


class LoadCollector(Collector):
    def __init__(self, balancer: LoadBalancer) -> None:
        self._balancer = balancer

    def describe(self) -> Iterator[Metric]:
        yield from (_gauge(known) for known in GAUGES)
        yield from (_counter(known) for known in COUNTERS)

    def collect(self) -> Iterator[Metric]:
        up = _gauge(UP)
        try:
            loads, repairs = self._balancer.get_all_queue_loads(), self._balancer.repairs()
            live = self._balancer.workers()
        except Unavailable:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        pending, running, workers, repaired = _gauge(PENDING), _gauge(RUNNING), _gauge(WORKERS), _counter(REPAIRED)
        for queue, load in loads.items():
            pending.add_metric([queue], load.pending)
            running.add_metric([queue], load.running)
        workers.add_metric([], len(live))
        for kind in REPAIRS:
            repaired.add_metric([kind], repairs.get(kind, 0))
        yield from (up, pending, running, workers, repaired)


def _gauge(known: tuple[str, str, tuple[str, ...]]) -> GaugeMetricFamily:
    name, text, labels = known
    return GaugeMetricFamily(name, text, labels=labels)


def _counter(known: tuple[str, str, tuple[str, ...]]) -> CounterMetricFamily:
    name, text, labels = known
    return CounterMetricFamily(name, text, labels=labels)
