"""What dispatchers are told about rates, and what they tell: see `domain.rates`."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.domain.fast_dataclass import fast_dataclass
from fairlead.domain.rates import Rate, RateOf
from fairlead.domain.rules import Rules


@fast_dataclass
class Sent:
    """The call of a lease was sent `after` seconds, at most, after its claim. Reported for calls that take long; for
    others, the release says so."""

    lease: str
    service: str
    after: float
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Rest:
    """What the upstream said about its limits: it takes no call of this service, or of this region of the service, for
    `seconds` seconds. With `requests` or `units`, it takes that many more within these seconds; `tokens` are units if
    the service counts in tokens, and nothing otherwise."""

    service: str
    region: str | None
    seconds: float
    requests: int | None = None
    units: float | None = None
    tokens: float | None = None


@fast_dataclass
class Spent:
    """A call that ended at `ended_at`, by the database's clock, before the queue was rebuilt. The rates still count
    it."""

    service: str
    region: str | None
    user_id: str
    ended_at: float
    units: float = 0.0
    plan: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class RateUse:
    """How much of a rate is used. `kind` is `service`, `region`, `pool` or `group`, and `name` its name. `rate` is
    None if the upstream asked for a rest but no rate is set.

    `until` is the time at which the next request fits: 0 if one fits now, and None if that depends on calls that have
    not been sent. `resting_until` is the end of the rest that the upstream asked for, or None.
    """

    kind: str
    name: str
    rate: Rate | None
    requests: int
    units: float
    until: float | None = 0.0
    resting_until: float | None = None

    @property
    def full(self) -> bool:
        return self.until != 0

    def unit(self, service: str, rules: Rules) -> str:
        """The unit in which it counts calls of this service."""
        return rules.unit_of(RateOf("pool", self.name) if self.kind == "pool" else RateOf("service", service))
