"""The calls about batches, without sending anything; see `calls.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx2

from fairlead.client.calls import Call, json_of, with_body
from fairlead.client.shapes import moment
from fairlead.errors import InvalidInput
from fairlead.runtime.batch_view import BatchView, ItemView

BATCHES = "/api/v1/batches"


@dataclass(frozen=True, slots=True)
class BatchSubmitted:
    """What the gateway said as it took the batch in. `replayed`: the idempotency key was seen before."""

    batch_id: str
    total: int
    replayed: bool


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Newest first; `next_cursor` is None on the last page."""

    data: list[BatchView]
    next_cursor: str | None


def submit_batch(items: Iterable[Mapping[str, Any]], key: str | None, **about: Any) -> Call[BatchSubmitted]:
    body = {name: value for name, value in about.items() if value is not None}
    return Call(
        "POST",
        BATCHES,
        _submitted,
        body=json_of({**_plain(body), "items": [_plain(item) for item in items]}),
        headers=with_body(key),
    )


def get_batch(batch_id: str, wait: int | None = None) -> Call[BatchView]:
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    return Call("GET", path_of(batch_id), lambda response: batch_of(response.json()), headers=headers)


def list_batches(**filters: Any) -> Call[BatchPage]:
    params = {name: str(value) for name, value in filters.items() if value is not None}
    return Call("GET", BATCHES, lambda response: _page(response.json()), params=params)


def cancel_batch(batch_id: str) -> Call[int]:
    return Call("POST", f"{path_of(batch_id)}/cancel", lambda response: int(response.json()["cancelled"]), again=False)


def resume_batch(batch_id: str) -> Call[int]:
    return Call("POST", f"{path_of(batch_id)}/resume", lambda response: int(response.json()["resumed"]), again=False)


def retry_item(batch_id: str, item: str | int) -> Call[ItemView]:
    name = str(item)
    if name in ("", ".", "..") or "/" in name:
        raise InvalidInput(f"{name!r} cannot be part of a path; use the item's number", pointer="/item")
    path = f"{path_of(batch_id)}/items/{quote(name, safe='')}/retry"
    return Call("POST", path, lambda response: item_of(response.json()), again=False)


def path_of(batch_id: str) -> str:
    if not isinstance(batch_id, str) or batch_id in ("", ".", ".."):
        raise InvalidInput(f"{batch_id!r} is not a batch id", pointer="/batch_id")
    return f"{BATCHES}/{quote(batch_id, safe='')}"


def batch_of(said: Mapping[str, Any]) -> BatchView:
    return BatchView(
        batch_id=said["batch_id"],
        user_id=said["user_id"],
        name=said.get("name"),
        metadata=said.get("metadata"),
        total=said["total"],
        counts=dict(said["counts"]),
        progress=said["progress"],
        created_at=datetime.fromisoformat(said["created_at"]).timestamp(),
        finished_at=moment(said.get("finished_at")),
        estimated_end=moment(said.get("estimated_end")),
    )


def item_of(said: Mapping[str, Any]) -> ItemView:
    return ItemView(
        item=said["item"],
        custom_id=said.get("custom_id"),
        job_id=said["job_id"],
        status=said["status"],
        retryable=said.get("retryable"),
        error=said.get("error"),
        finished_at=moment(said.get("finished_at")),
        result=said.get("result"),
    )


def _submitted(response: httpx2.Response) -> BatchSubmitted:
    said = response.json()
    return BatchSubmitted(said["batch_id"], said["total"], "idempotent-replayed" in response.headers)


def _page(said: Mapping[str, Any]) -> BatchPage:
    return BatchPage([batch_of(batch) for batch in said["data"]], said.get("next_cursor"))


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in fields.items()}
