"""`app.usage`: sums over the usage ledger, page by page."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypedDict, Unpack

import orjson

from fairlead.app.runtime import Runtime
from fairlead.domain.calls import OUTCOMES
from fairlead.domain.config_checks import known
from fairlead.domain.usage_report import MAX_ROWS, UsageQuery, UsageTotal
from fairlead.domain.validation import moment
from fairlead.errors import InvalidInput

DAY, HOUR = 86400.0, 3600.0
LATEST = 253402214400.0
"""The beginning of the last day of the year 9999. A period that ended later could not be shown."""
_BACK = {"hour": DAY, "day": 30 * DAY, "month": 365 * DAY, "total": 30 * DAY}
_KEY = (int, *[str] * (len(UsageQuery.GROUPS) - 1), int)


class UsageQuestion(TypedDict, total=False):
    """The calls to sum up, and how. `group_by` is a list of names, or one text with commas."""

    group_by: str | Sequence[str]
    interval: str
    start: datetime | str | None
    end: datetime | str | None
    limit: int
    cursor: str | None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """One page of sums. `query` has the period that they cover, widened to whole hours or days."""

    query: UsageQuery
    data: list[UsageTotal]
    next_cursor: str | None


class UsageReports:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def query(self, filters: Mapping[str, str | None] | None = None, **asked: Unpack[UsageQuestion]) -> UsageQuery:
        """Check a question to the ledger. Raises InvalidInput."""
        interval, limit = asked.get("interval", "day"), asked.get("limit", 1000)
        start, end, cursor = asked.get("start"), asked.get("end"), asked.get("cursor")
        if interval not in UsageQuery.INTERVALS:
            raise InvalidInput(
                f"no interval is called {interval!r}; {known(UsageQuery.INTERVALS)}", pointer="/interval"
            )
        if type(limit) is not int or not 1 <= limit <= MAX_ROWS:
            raise InvalidInput(f"limit must be from 1 to {MAX_ROWS}", pointer="/limit")
        until = self._runtime.clock.now() if end is None else moment(end, "to")
        since = until - _BACK[interval] if start is None else moment(start, "from")
        if not since < (until := min(LATEST, until)):
            raise InvalidInput("from must be before to", pointer="/from")
        width = HOUR if interval == "hour" else DAY
        query = UsageQuery(
            max(0.0, math.floor(since / width) * width),
            max(width, math.ceil(until / width) * width),
            interval,
            _groups(asked.get("group_by", ())),
            _filters(filters or {}),
            limit=limit,
        )
        return query if cursor is None else replace(query, after=_read_cursor(cursor, query))

    async def page(self, query: UsageQuery) -> UsageReport:
        totals = await self._runtime.store.usage(replace(query, limit=query.limit + 1))
        more = len(totals) > query.limit
        totals = totals[: query.limit]
        return UsageReport(query, totals, _write_cursor(totals[-1], query) if more else None)

    async def pages(self, query: UsageQuery) -> AsyncIterator[UsageReport]:
        """All pages from this one on."""
        while True:
            report = await self.page(query)
            yield report
            if report.next_cursor is None:
                return
            query = replace(query, after=report.data[-1].key)


def _groups(names: str | Sequence[str]) -> tuple[str, ...]:
    given = [name for name in names.split(",") if name] if isinstance(names, str) else list(names)
    for name in given:
        if name not in UsageQuery.GROUPS:
            raise InvalidInput(f"cannot group by {str(name)[:50]!r}; {known(UsageQuery.GROUPS)}", pointer="/group_by")
    return tuple(dict.fromkeys(given))


def _filters(filters: Mapping[str, str | None]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in filters.items():
        if name not in UsageQuery.GROUPS:
            raise InvalidInput(f"cannot filter by {str(name)[:50]!r}; {known(UsageQuery.GROUPS)}", pointer=f"/{name}")
        if value is None:
            continue
        if not isinstance(value, str) or "\0" in value:
            raise InvalidInput(f"{name} must be a text", pointer=f"/{name}")
        found[name] = value
    if found.get("outcome", OUTCOMES[0]) not in OUTCOMES:
        raise InvalidInput(f"no outcome is called {found['outcome'][:50]!r}; {known(OUTCOMES)}", pointer="/outcome")
    return found


def _mark(key: Sequence[Any], query: UsageQuery) -> int:
    where = (tuple(key), query.interval, query.group_by, sorted(query.filters.items()))
    return zlib.crc32(repr(where).encode())


def _write_cursor(total: UsageTotal, query: UsageQuery) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([*total.key, _mark(total.key, query)])).decode().rstrip("=")


def _read_cursor(cursor: str, query: UsageQuery) -> tuple[Any, ...]:
    """The key in a cursor. Callers can forge cursors, so its types are checked."""
    try:
        *key, mark = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, binascii.Error):
        key, mark = [], None
    right = len(key) == len(_KEY) and all(type(value) is kind for value, kind in zip(key, _KEY, strict=False))
    if not right or mark != _mark(key, query) or not all(abs(n) < 1 << 31 for n in (key[0], key[-1])):
        raise InvalidInput("this cursor does not belong to this list; start without one", pointer="/cursor")
    if any("\0" in text for text in key[1:-1]):
        raise InvalidInput("this cursor does not belong to this list; start without one", pointer="/cursor")
    return tuple(key)
