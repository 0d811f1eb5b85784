"""The route of the usage ledger: sums as JSON, CSV or JSON Lines."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fairlead.app.usage import UsageReport
from fairlead.domain.access import Role
from fairlead.domain.events import iso
from fairlead.domain.usage_report import MAX_ROWS, UsageQuery, UsageTotal
from fairlead.errors import InvalidInput
from fairlead.gateway import models_usage
from fairlead.gateway.large_bodies import NDJSON
from fairlead.gateway.openapi import documented
from fairlead.gateway.permissions import caller_of
from fairlead.gateway.problems import Forbidden, UrlTooLong
from fairlead.gateway.responses import fairlead_of, json_response

CSV = "text/csv"
_BY_TYPE = {"text/csv": "csv", "application/x-ndjson": "jsonl", "application/jsonl": "jsonl"}
_SUMS = (
    "calls",
    "seconds",
    "waited",
    "tokens_in",
    "tokens_out",
    "tokens_cached",
    "units",
    "price",
    "reported",
    "ignored",
)

_RESPONSES = documented(
    200, models_usage.UsagePage, "One page, or all rows as text.", InvalidInput, Forbidden, UrlTooLong
)
_RESPONSES[200]["content"] |= {media: {"schema": {"type": "string"}} for media in (CSV, NDJSON)}

router = APIRouter()


@router.get(
    "/api/v1/usage",
    summary="Who used what: calls, seconds, tokens, units and prices",
    tags=["usage"],
    operation_id="usage",
    description="Sums over the calls that ended in a period. A user's key sees its own calls only. With `format=csv` "
    "or `jsonl`, or such an `Accept` header, the response has all rows.",
    responses=_RESPONSES,
)
async def usage(request: Request, query: Annotated[models_usage.UsageParameters, Query()]) -> Response:
    reports = fairlead_of(request).admin.usage
    form = query.format or _accepted(request)
    caller, user = caller_of(request), query.user
    if caller.role is Role.USER:
        if user not in (None, caller.user_id):
            raise Forbidden("a user's key sees its own usage only; omit user", pointer="/user")
        user = caller.user_id
    asked = reports.query(
        {**{name: getattr(query, name) for name in UsageQuery.GROUPS}, "user": user},
        group_by=",".join(filter(None, request.query_params.getlist("group_by"))),
        interval=query.interval,
        start=query.from_,
        end=query.to,
        limit=query.limit if form == "json" else MAX_ROWS,
        cursor=query.cursor if form == "json" else None,
    )
    if form == "json":
        return json_response(_page(await reports.page(asked)))
    pages = reports.pages(asked)
    first = await anext(pages)  # raises before the response begins
    write = _csv if form == "csv" else _json_lines
    media = CSV if form == "csv" else NDJSON
    return StreamingResponse(_all(first, pages, write), media_type=media)


def _accepted(request: Request) -> str:
    types = (part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(","))
    return next((_BY_TYPE[each] for each in types if each in _BY_TYPE), "json")


def _page(report: UsageReport) -> dict[str, Any]:
    query = report.query
    return {
        "from": iso(query.start),
        "to": iso(query.end),
        "interval": query.interval,
        "group_by": list(query.group_by),
        "data": [total.as_dict() for total in report.data],
        "next_cursor": report.next_cursor,
    }


async def _all(first: UsageReport, rest: AsyncIterator[UsageReport], write: Any) -> AsyncIterator[bytes]:
    yield write(first, head=True)
    async for report in rest:
        yield write(report, head=False)


def _json_lines(report: UsageReport, *, head: bool) -> bytes:
    return b"".join(orjson.dumps(total.as_dict()) + b"\n" for total in report.data)


def _csv(report: UsageReport, *, head: bool) -> bytes:
    start = () if report.query.interval == "total" else ("start",)
    names = (*start, *report.query.group_by, *_SUMS)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    if head:
        writer.writerow(names)
    writer.writerows(_cells(total, names) for total in report.data)
    return text.getvalue().encode()


def _cells(total: UsageTotal, names: tuple[str, ...]) -> list[Any]:
    row = total.as_dict()
    return [_plain(row[name]) if name in total.groups else row[name] for name in names]


def _plain(text: str) -> str:
    """The text of a cell, such that no spreadsheet takes it for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
