"""Found by autodiscovery."""

from typing import Any

from celery import Task, shared_task


@shared_task(bind=True)
def generate(self: Task, user_id: int, prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "queue": self.request.delivery_info["routing_key"]}


@shared_task(bind=True)
def report(self: Task) -> str:
    return str(self.request.delivery_info["routing_key"])


@shared_task
def total(parts: list[dict[str, Any]]) -> list[str]:
    return [part["queue"] for part in parts]
