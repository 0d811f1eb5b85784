"""The names that code written for per-queue counters calls, for the balancer that was made last."""

from __future__ import annotations

from typing import Any

from fairlead.celery.balancer import default_balancer
from fairlead.celery.ledger import Load


def enqueue_task_with_load_balancing(task: Any, /, *args: Any, **kwargs: Any) -> Any:
    return default_balancer().enqueue_task_with_load_balancing(task, *args, **kwargs)


def enqueue_task_to_user_queue(task: Any, user_id: Any, /, *args: Any, **kwargs: Any) -> Any:
    return default_balancer().enqueue_task_to_user_queue(task, user_id, *args, **kwargs)


def select_best_queue() -> str:
    return default_balancer().select_best_queue()


def get_all_queue_loads() -> dict[str, Load]:
    return default_balancer().get_all_queue_loads()


def get_queue_load(queue_name: str) -> Load:
    return default_balancer().get_queue_load(queue_name)


def reset_queue_counters(queue_name: str | None = None) -> None:
    default_balancer().reset_queue_counters(queue_name)


def increment_pending(queue_name: str) -> int:
    return default_balancer().increment_pending(queue_name)


def decrement_pending(queue_name: str) -> int:
    return default_balancer().decrement_pending(queue_name)


def increment_running(queue_name: str) -> int:
    return default_balancer().increment_running(queue_name)


def decrement_running(queue_name: str) -> int:
    return default_balancer().decrement_running(queue_name)
