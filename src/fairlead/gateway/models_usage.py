"""Request and response models of the usage ledger; see models.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fairlead.domain.usage_report import MAX_ROWS, UsageQuery
from fairlead.gateway.derived_models import Shape, example
from fairlead.gateway.models import MOMENT

_Name = Annotated[str | None, Field(None, max_length=255)]


class UsageParameters(Shape):
    """What to sum up, over which period, and in which form."""

    group_by: str = Field(
        "",
        max_length=200,
        description=f"One row for each value of these, separated by commas: {', '.join(UsageQuery.GROUPS)}.",
    )
    interval: str = Field("day", max_length=20, description="One row for each hour, day or month (in UTC), or `total`.")
    from_: str | None = Field(
        None,
        alias="from",
        max_length=64,
        description="Calls that ended at or after this time: ISO 8601. Default: 30 days before `to`.",
    )
    to: str | None = Field(
        None, max_length=64, description="Calls that ended before this time: ISO 8601. Default: now."
    )
    user: _Name
    plan: _Name
    group: str | None = Field(None, max_length=255, description="A group, such as `acme`, with its teams.")
    feature: _Name
    service: _Name
    model: _Name
    region: _Name
    outcome: _Name
    format: Literal["json", "csv", "jsonl"] | None = Field(
        None, description="Default: what `Accept` asks for, else json."
    )
    limit: int = Field(1000, ge=1, le=MAX_ROWS, description="Rows of one page; json only.")
    cursor: str | None = Field(None, max_length=2000, description="`next_cursor` of the previous page; json only.")


class UsageRow(Shape):
    """The sums over some calls. Only the names that were grouped by are present."""

    model_config = example(
        start=MOMENT,
        user="ada",
        service="chat",
        calls=12,
        seconds=31.5,
        waited=4.2,
        tokens_in=5210,
        tokens_out=1904,
        tokens_cached=0,
        units=0,
        price=0.0047,
        reported=12,
        ignored=0,
    )

    start: str | None = Field(None, description="The beginning of the hour, day or month; absent from totals.")
    user: str | None = None
    plan: str | None = None
    group: str | None = None
    feature: str | None = None
    service: str | None = None
    model: str | None = None
    region: str | None = None
    outcome: str | None = None
    calls: int
    seconds: float = Field(description="Time in slots.")
    waited: float = Field(description="Time in queues.")
    tokens_in: int
    tokens_out: int
    tokens_cached: int = Field(description="The part of tokens_in that came from a cache.")
    units: float
    price: float = Field(description="By the prices when the calls ended.")
    reported: int = Field(description="Calls that reported tokens or units.")
    ignored: int = Field(description="Reported values that were not credible.")


class UsagePage(Shape):
    model_config = example(
        **{"from": MOMENT, "to": MOMENT, "interval": "day", "group_by": ["user"], "data": [], "next_cursor": None}
    )

    from_: str = Field(alias="from", description="The period, widened to whole days, or hours for `interval=hour`.")
    to: str
    interval: str
    group_by: list[str]
    data: list[UsageRow]
    next_cursor: str | None
