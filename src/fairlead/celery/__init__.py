"""Balanced queues for apps with Celery workers: `LoadBalancer(app)`.

The module's functions are for code that has no reference to a balancer: they use the balancer that was created last.
"""

from __future__ import annotations

from fairlead.celery.balancer import (
    LoadBalancer,
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
from fairlead.celery.reconcile import Reconciliation
from fairlead.celery.task_counts import Load

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
