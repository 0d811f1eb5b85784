"""Fair queues for apps that have Celery workers: `LoadBalancer(app)`.

The functions act on the balancer that was made last, so that code which knows no balancer finds them here.
"""

from __future__ import annotations

from fairlead.celery.balancer import LoadBalancer
from fairlead.celery.functions import (
    decrement_pending,
    decrement_running,
    enqueue_task_to_user_queue,
    enqueue_task_with_load_balancing,
    get_all_queue_loads,
    get_queue_load,
    increment_pending,
    increment_running,
    reset_queue_counters,
    select_best_queue,
)
from fairlead.celery.ledger import Load
from fairlead.celery.reconcile import Reconciliation

__all__ = [
    "Load",
    "LoadBalancer",
    "Reconciliation",
    "decrement_pending",
    "decrement_running",
    "enqueue_task_to_user_queue",
    "enqueue_task_with_load_balancing",
    "get_all_queue_loads",
    "get_queue_load",
    "increment_pending",
    "increment_running",
    "reset_queue_counters",
    "select_best_queue",
]
