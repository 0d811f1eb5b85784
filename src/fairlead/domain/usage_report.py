"""Questions to the usage ledger, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from fairlead.domain.events import iso
from fairlead.domain.prices import NANO

MAX_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Sums over the calls that ended from `start` to before `end`, for each value of `group_by` and each `interval`.
    `start` and `end` are widened to whole hours, or to whole days unless the interval is an hour. The filter `group`
    includes the teams of an organisation. `after` is the key of the last total of the previous page."""

    INTERVALS: ClassVar[tuple[str, ...]] = ("hour", "day", "month", "total")
    GROUPS: ClassVar[tuple[str, ...]] = ("user", "plan", "group", "feature", "service", "model", "region", "outcome")

    start: float
    end: float
    interval: str = "day"
    group_by: tuple[str, ...] = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    after: tuple[Any, ...] | None = None
    limit: int = 1000

    def start_of(self, bucket: int) -> float | None:
        """The beginning of the interval with this number."""
        if self.interval == "total":
            return None
        if self.interval == "month":
            return datetime((bucket - 1) // 12, (bucket - 1) % 12 + 1, 1, tzinfo=UTC).timestamp()
        return bucket * (3600.0 if self.interval == "hour" else 86400.0)


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """The sums over some calls. `start` is the beginning of their interval. `reported` counts the calls that reported
    usage, `ignored` the reported values that were not credible. `price` is in billionths of the currency."""

    key: tuple[Any, ...]
    start: float | None
    groups: Mapping[str, str]
    calls: int
    waited: float
    seconds: float
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    units: float
    ignored: int
    reported: int
    price: int

    def as_dict(self) -> dict[str, Any]:
        """The total as clients receive it, flat: one row of a table."""
        return {
            **({} if self.start is None else {"start": iso(self.start)}),
            **self.groups,
            "calls": self.calls,
            "seconds": round(self.seconds, 6),
            "waited": round(self.waited, 6),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "tokens_cached": self.tokens_cached,
            "units": self.units,
            "price": self.price / NANO,
            "reported": self.reported,
            "ignored": self.ignored,
        }


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One row of the ledger: a call that has ended. None means that it was not reported, or does not apply."""

    job_id: str
    run: int
    step: int
    attempt: int
    user_id: str
    plan: str | None
    group: str | None
    feature_name: str
    service: str
    model: str | None
    region: str | None
    outcome: str
    ended_at: float
    waited: float
    seconds: float
    tokens_in: int | None
    tokens_out: int | None
    tokens_cached: int | None
    units: float | None
    ignored: int
    price: int | None
