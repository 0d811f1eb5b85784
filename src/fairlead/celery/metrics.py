"""A Prometheus collector that reads the loads at each scrape: `REGISTRY.register(LoadCollector(balancer))`.

Register it in one process only: its numbers cover all processes.
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
CONSUMERS = ("fairlead_celery_consumers", "Workers that consume a queue.", ("queue",))
WORKERS = ("fairlead_celery_workers", "Workers that sent a heartbeat recently.", ())
REPAIRED = ("fairlead_celery_repairs", "Tasks and counters that reconcile passes put right.", ("kind",))
UP = ("fairlead_celery_up", "1 if Redis answered; if 0, no other metrics are exported.", ())
GAUGES = (PENDING, RUNNING, CONSUMERS, WORKERS, UP)
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
        pending, running, consumers = _gauge(PENDING), _gauge(RUNNING), _gauge(CONSUMERS)
        workers, repaired = _gauge(WORKERS), _counter(REPAIRED)
        for queue, load in loads.items():
            pending.add_metric([queue], load.pending)
            running.add_metric([queue], load.running)
            consumers.add_metric([queue], sum(worker.consumes(queue) for worker in live))
        workers.add_metric([], len(live))
        for kind in REPAIRS:
            repaired.add_metric([kind], repairs.get(kind, 0))
        yield from (up, pending, running, consumers, workers, repaired)


def _gauge(known: tuple[str, str, tuple[str, ...]]) -> GaugeMetricFamily:
    name, text, labels = known
    return GaugeMetricFamily(name, text, labels=labels)


def _counter(known: tuple[str, str, tuple[str, ...]]) -> CounterMetricFamily:
    name, text, labels = known
    return CounterMetricFamily(name, text, labels=labels)
