"""Response models of rates and groups."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from fairlead.domain.rates import Rate
from fairlead.gateway.derived_models import fields_of


@fields_of(Rate)
class RateShape(BaseModel):
    """At most so many requests and units in any window of `per` seconds; null: not limited."""


class SharedRateShape(BaseModel):
    """The rate of a pool, of each user of a plan, or of a group. Plans and groups have it in each service."""

    of: Literal["pool", "plan", "group"]
    name: str
    rate: RateShape
    unit: str = Field(description="The unit of `units`, such as tokens.")
    overridden: bool = Field(description="Whether an operator has set it.")


class RateUseShape(BaseModel):
    """How much of a rate is used."""

    of: Literal["service", "region", "pool", "group"]
    name: str
    rate: RateShape | None = Field(description="Null if the upstream asked for a rest and no rate is set.")
    unit: str = Field(description="The unit of `units`, such as tokens.")
    requests: int
    units: float
    full: bool
    until: str | None = Field(description="When the next call fits; null if one fits now, or if that is not known.")
    resting_until: str | None = Field(description="The upstream takes no calls before this time.")


class GroupState(BaseModel):
    """A group of users in one service."""

    weight: float
    limit: int | None = Field(description="Slots that its members may have at once; null: no limit.")
    rate: RateShape | None = Field(description="What its members may call together in a window of time.")
    members: int = Field(description="Users and teams in it that wait, run or still have to catch up.")
    running: int = Field(description="Slots that its members have.")
    parked: bool = Field(description="Whether its members are passed over now, at the limit or rate of the group.")
