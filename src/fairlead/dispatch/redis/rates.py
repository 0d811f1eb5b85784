"""The encoding of rates in the arguments and replies of scripts, and the timers that look at a scope again when a rate
allows further steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.dispatch.port import Release
from fairlead.dispatch.rates import RateUse, Rest, Sent, Spent
from fairlead.domain.fair_share import SECOND, micros
from fairlead.domain.rates import UNLIMITED, Rate
from fairlead.domain.rules import ServiceRules

_SENT = "\1"
DUE = {"exchange": 11} | dict.fromkeys(
    ("offer", "claim_new", "release", "withdraw", "promote", "hold", "end_holds", "configure", "open", "sent", "rest"),
    2,
)
"""The scripts whose reply says when a rate may allow further steps, and the index in the reply."""


def rates_fields(rules: ServiceRules, pool_rate: Rate | None) -> dict[str, object]:
    """The rates of a service for the script `configure`; empty if it has none."""
    fields: dict[str, object] = {
        "own": rate_list(rules.rate),
        "user": rate_list(rules.user_rate),
        "pool": rate_list(pool_rate),
    }
    if rules.region_rates:
        fields["regions"] = {region: rate_list(rate) for region, rate in rules.region_rates.items()}
    return {name: value for name, value in fields.items() if value is not None}


def rate_list(rate: Rate | None) -> list[int] | None:
    if rate is None:
        return None
    requests = UNLIMITED if rate.requests is None else rate.requests
    return [requests, UNLIMITED if rate.units is None else micros(rate.units), micros(rate.per)]


def named(release: Release) -> str:
    return release.lease if release.sent is None else f"{release.lease}{_SENT}{micros(release.sent)}"


def sent_args(reports: Sequence[Sent]) -> list[str | bytes | int]:
    args: list[str | bytes | int] = []
    for report in reports:
        args += (report.lease, report.service, micros(report.after))
    return args


def rest_args(rests: Sequence[Rest]) -> list[str | bytes | int]:
    args: list[str | bytes | int] = []
    for rest in rests:
        requests = "" if rest.requests is None else max(0, rest.requests)
        args += (rest.service, rest.region or "", micros(rest.seconds), requests)
        args.append("" if rest.units is None else micros(rest.units))
    return args


def spent_args(calls: Sequence[Spent]) -> list[str | bytes | int]:
    args: list[str | bytes | int] = []
    for call in calls:
        args += (call.service, call.region or "", call.user_id, micros(call.ended_at), micros(call.units))
        args += (call.plan or "", call.group or "")
    return args


def rate_use(row: Sequence[Any], pool: str | None) -> RateUse:
    kind, name, requests, units, per, used, used_units, due, rest = row
    limits = (None if requests == UNLIMITED else requests, None if units == UNLIMITED else units / SECOND)
    return RateUse(
        kind.decode(),
        (pool or "") if kind == b"pool" else name.decode(),
        None if limits == (None, None) else Rate(*limits, per / SECOND),
        used,
        used_units / SECOND,
        None if due < 0 else due / SECOND,
        rest / SECOND if rest else None,
    )


class RateTimers:
    """Calls `look` with a scope when one of its rates may allow further steps. A script's reply says when that is."""

    def __init__(self, look: Callable[[str], None]) -> None:
        self._look = look
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def set(self, scope: str, delay: bytes | str) -> None:
        """Set the timer of a scope from a script's reply: µs, or empty."""
        if not delay:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + int(delay) / SECOND
        timer = self._timers.get(scope)
        if timer is None or when < timer.when():
            if timer is not None:
                timer.cancel()
            self._timers[scope] = loop.call_at(when, self._fire, scope)

    def _fire(self, scope: str) -> None:
        del self._timers[scope]
        self._look(scope)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
