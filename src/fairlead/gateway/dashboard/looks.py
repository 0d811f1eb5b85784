"""How each view is looked at: what the app says, in the shape that the pages take.

Nothing in a state is null but what users put there: a merge patch cannot say it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fairlead.domain.keys import Role
from fairlead.gateway.access import Caller

if TYPE_CHECKING:
    from fairlead.app import Fairlead

MOST_BATCHES = 100
MOST_ITEMS = 100
MOST_AUDITED = 200

_ROW = (
    "job_id",
    "user_id",
    "feature_name",
    "status",
    "priority",
    "original_priority",
    "created_at",
    "queued_at",
    "started_at",
    "finished_at",
    "scheduled_at",
    "current_step_index",
    "total_steps",
    "steps",
    "retryable",
    "error",
    "progress",
    "position",
)


async def overview(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    return await app.dashboard.overview()


async def service(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    return await app.dashboard.service(asked.service)


async def job(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    job_id = str(asked.job_id)
    found, timeline = await app.dashboard.job(job_id)
    why = await app.why(job_id, private=caller.role is Role.USER)
    return {"job": _known(found.as_dict()), "why": _known(why.as_dict()), "timeline": timeline}


async def jobs(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    page = await app.list_jobs(
        user_id=asked.user_id,
        feature_name=asked.feature_name,
        status=asked.status,
        since=asked.since,
        until=asked.until,
        limit=asked.limit,
    )
    counts = await app.dashboard.counts(
        user_id=asked.user_id, feature_name=asked.feature_name, since=asked.since, until=asked.until
    )
    rows = [found.as_dict() for found in page.data]
    return _known(
        {
            "jobs": {row["job_id"]: _known({name: row[name] for name in _ROW}) for row in rows},
            "next_cursor": page.next_cursor,
            "counts": counts,
        }
    )


async def users(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    return await app.dashboard.users()


async def batches(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    page = await app.list_batches(user_id=asked.user_id, limit=MOST_BATCHES)
    found = {batch.batch_id: _known(batch.as_dict()) for batch in page.data}
    return _known({"batches": found, "next_cursor": page.next_cursor})


async def batch(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    batch_id = str(asked.batch_id)
    found, items = await app.get_batch(batch_id), await app.batch_items(batch_id, limit=MOST_ITEMS)
    return _known(
        {
            "batch": _known(found.as_dict()),
            "items": {str(item.item): _known(item.as_dict()) for item in items.data},
            "next_cursor": items.next_cursor,
        }
    )


async def dead(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    return await app.dashboard.dead()


async def workers(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    return await app.dashboard.workers()


async def audit(app: Fairlead, caller: Caller, asked: Any) -> dict[str, Any]:
    page = await app.audit(limit=MOST_AUDITED)
    rows = {record.id: _known(asdict(record)) for record in page.data}
    return _known({"rows": rows, "next_cursor": page.next_cursor})


def _known(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}
