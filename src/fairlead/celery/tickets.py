"""Under which name a task is counted.

A retry is published while its task still runs, and so is what replaces a task: same id, another message, another life.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ticket_of(task_id: str, retries: int | None = 0, nesting: int | None = 0) -> str:
    """The task's id; with `#2` behind it for its second retry, `/1` for what replaced it."""
    text = task_id
    if retries:
        text += f"#{retries}"
    if nesting:
        text += f"/{nesting}"
    return text


def ticket_of_headers(headers: Mapping[str, Any]) -> str | None:
    """Of a message; None if it is not a task's."""
    task_id = headers.get("id")
    if not task_id:
        return None
    return ticket_of(task_id, headers.get("retries"), headers.get("replaced_task_nesting"))


def ticket_of_request(request: Any) -> str:
    """Of a task that runs, by its `task.request`."""
    return ticket_of(request.id, request.retries, getattr(request, "replaced_task_nesting", 0))
