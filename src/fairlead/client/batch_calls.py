"""Builds the requests for batches and parses their responses; see `calls.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx2

from fairlead.client.calls import JSON, ApiCall, json_of, with_body
from fairlead.client.shapes import moment
from fairlead.domain.batch import BatchView, ItemView
from fairlead.errors import InvalidInput

BATCHES = "/api/v1/batches"


@dataclass(frozen=True, slots=True)
class BatchSubmitted:
    """The response to the submit of a batch. `replayed` is True if the idempotency key was used before, and no new
    batch was created."""

    batch_id: str
    total: int
    replayed: bool


@dataclass(frozen=True, slots=True)
class BatchPage:
    """One page of a list of batches, newest first. `next_cursor` is None on the last page."""

    data: list[BatchView]
    next_cursor: str | None


def submit_batch(items: Iterable[Mapping[str, Any]], key: str | None, **options: Any) -> ApiCall[BatchSubmitted]:
    fields = {name: value for name, value in options.items() if value is not None}
    return ApiCall(
        "POST",
        BATCHES,
        _submitted,
        body=json_of({**_plain(fields), "items": [_plain(item) for item in items]}),
        headers=with_body(key),
    )


def get_batch(batch_id: str, wait: int | None = None) -> ApiCall[BatchView]:
    headers = {} if wait is None else {"Prefer": f"wait={wait}"}
    return ApiCall("GET", path_of(batch_id), lambda response: batch_of(response.json()), headers=headers)


def list_batches(**filters: Any) -> ApiCall[BatchPage]:
    params = {name: str(value) for name, value in filters.items() if value is not None}
    return ApiCall("GET", BATCHES, lambda response: _page(response.json()), params=params)


def cancel_batch(batch_id: str) -> ApiCall[int]:
    return ApiCall(
        "POST", f"{path_of(batch_id)}/cancel", lambda response: int(response.json()["cancelled"]), again=False
    )


def resume_batch(batch_id: str) -> ApiCall[int]:
    return ApiCall("POST", f"{path_of(batch_id)}/resume", lambda response: int(response.json()["resumed"]), again=False)


def retry_batch(batch_id: str, *, from_start: bool) -> ApiCall[int]:
    body = json_of({"from": "start" if from_start else "step"})
    path = f"{path_of(batch_id)}/retry"
    return ApiCall("POST", path, lambda response: int(response.json()["retried"]), again=False, body=body, headers=JSON)


def retry_item(batch_id: str, item: str | int) -> ApiCall[ItemView]:
    name = str(item)
    if name in ("", ".", "..") or "/" in name:
        raise InvalidInput(f"{name!r} cannot be part of a URL path; use the item's number", pointer="/item")
    path = f"{path_of(batch_id)}/items/{quote(name, safe='')}/retry"
    return ApiCall("POST", path, lambda response: item_of(response.json()), again=False)


def path_of(batch_id: str) -> str:
    if not isinstance(batch_id, str) or batch_id in ("", ".", ".."):
        raise InvalidInput(f"{batch_id!r} is not a batch id", pointer="/batch_id")
    return f"{BATCHES}/{quote(batch_id, safe='')}"


def batch_of(body: Mapping[str, Any]) -> BatchView:
    return BatchView(
        batch_id=body["batch_id"],
        user_id=body["user_id"],
        name=body.get("name"),
        metadata=body.get("metadata"),
        total=body["total"],
        counts=dict(body["counts"]),
        progress=body["progress"],
        created_at=datetime.fromisoformat(body["created_at"]),
        finished_at=moment(body.get("finished_at")),
        estimated_end=moment(body.get("estimated_end")),
    )


def item_of(body: Mapping[str, Any]) -> ItemView:
    return ItemView(
        item=body["item"],
        custom_id=body.get("custom_id"),
        job_id=body["job_id"],
        status=body["status"],
        retryable=body.get("retryable"),
        error=body.get("error"),
        finished_at=moment(body.get("finished_at")),
        result=body.get("result"),
    )


def _submitted(response: httpx2.Response) -> BatchSubmitted:
    body = response.json()
    return BatchSubmitted(body["batch_id"], body["total"], "idempotent-replayed" in response.headers)


def _page(body: Mapping[str, Any]) -> BatchPage:
    return BatchPage([batch_of(batch) for batch in body["data"]], body.get("next_cursor"))


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in fields.items()}
