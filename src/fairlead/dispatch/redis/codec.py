"""Encoding of script arguments and decoding of script replies.

Offers are encoded in MessagePack, so that scripts can store them as they are received.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import orjson

from fairlead.dispatch.port import Lease, Offer, RegionSnapshot, Release, ScopeState, ServiceSnapshot, UserQueue
from fairlead.dispatch.redis.rates import named, rate_list, rate_use, rates_fields
from fairlead.dispatch.redis.servers import identity_of
from fairlead.domain.fair_share import DEFAULT_COST, ESTIMATED_BY, SECOND, QueuePosition, micros
from fairlead.domain.groups import UNDECLARED_GROUP, GroupAhead, GroupQueue, GroupRules, levels_of
from fairlead.domain.job import Hold
from fairlead.domain.rates import Rate
from fairlead.domain.rules import SECONDS, Order, ServiceRules

_SMALL = [bytes([number]) for number in range(128)]
_INT = struct.Struct(">Bq").pack
_FLOAT = struct.Struct(">Bd").pack
FALSE = b"\xc2"


def packed_int(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < 128 else _INT(0xD3, number)


def packed_float(number: float) -> bytes:
    """Encode a float in MessagePack. A whole number is encoded as an integer, which is shorter and the same to Lua."""
    return packed_int(int(number)) if number.is_integer() and abs(number) < 2**53 else _FLOAT(0xCB, number)


@lru_cache(4096)  # users and services repeat: 0.1 µs instead of 0.4
def packed_text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 32:
        return bytes([0xA0 | len(data)]) + data
    if len(data) < 1 << 8:
        return bytes([0xD9, len(data)]) + data
    if len(data) < 1 << 16:
        return struct.pack(">BH", 0xDA, len(data)) + data
    return struct.pack(">BI", 0xDB, len(data)) + data


NUL = "\0"
Arg = str | bytes | int

_service_and_outcome = attrgetter("service", "refund", "failed", "used")
_OUTCOMES = {None: "0", False: "2", True: "3"}


def joined(names: Iterable[str]) -> str:
    return NUL.join(sorted(names))


def names(value: bytes) -> list[str]:
    """Decode a text of names that `joined` encoded."""
    return value.decode().split(NUL) if value else []


def texts(values: Sequence[bytes]) -> list[str]:
    return [value.decode() for value in values]


def rules_json(rules: ServiceRules, pool_rate: Rate | None = None) -> bytes:
    fields: dict[str, object] = {
        "limit": rules.limit,
        "fifo": rules.order is Order.FIFO,
        "paused": rules.paused,
        "retries_first": rules.retries_first,
        "ttl": micros(rules.lease_ttl),
        "cost": DEFAULT_COST if rules.cost is None else micros(rules.cost),
        "regions": sorted(rules.regions.items()),
        "breaker": rules.breaker_failures,
        "breaker_rest": micros(rules.breaker_rest),
    }
    if rules.regions and (rules.region_weights or rules.pooled_regions is not None):
        weights = rules.region_weights
        fields["more"] = [
            (weights.get(region, 1.0) if weights else False, rules.in_pool(region)) for region in sorted(rules.regions)
        ]
        fields["partial"] = rules.pooled_regions is not None
    if rules.cost_unit != SECONDS:
        fields["other_unit"] = True
    if rules.charge != SECONDS:
        fields["by_used"] = True
    if rules.user_limit is not None:
        fields["user_limit"] = rules.user_limit
    if rates := rates_fields(rules, pool_rate):
        fields["rates"] = rates
    return orjson.dumps(fields)


def packed_plan(plan: str, group: str | None) -> bytes:
    """Encode a plan behind the five values of a group with two levels, of which some may be missing."""
    missing = 5 if group is None else 5 - (1 + 2 * len(levels_of(group)))
    return FALSE * missing + packed_text(plan)


def _weight(weight: float) -> str:
    """Encode a weight as an argument. An invalid weight counts as 1, so that it cannot block the queue."""
    return repr(weight if weight > 0 else 1.0)


def groups_json(groups: Mapping[str, GroupRules]) -> bytes:
    if not groups:
        return b""
    return orjson.dumps(
        {path: (each.weight, each.limit or False, rate_list(each.rate) or False) for path, each in groups.items()}
    )


def plans_json(plan_rates: Mapping[str, Rate]) -> bytes:
    return orjson.dumps({plan: rate_list(rate) for plan, rate in sorted(plan_rates.items())}) if plan_rates else b""


def packed_group(path: str | None, groups: Mapping[str, GroupRules]) -> bytes:
    """Encode the path of a group, and the weight and limit of each group that it names, from the outermost."""
    if path is None:
        return b""
    return packed_text(path) + b"".join(
        packed_float(float(rules.weight)) + (FALSE if rules.limit is None else packed_int(rules.limit))
        for rules in (groups.get(level, UNDECLARED_GROUP) for level in levels_of(path))
    )


def offer_args(offers: Iterable[Offer], groups: Mapping[str, GroupRules]) -> list[Arg]:
    args: list[Arg] = []
    for offer in offers:
        rest = _packed_rest(
            offer.service, offer.band, offer.rank, offer.step, offer.run, offer.cost, offer.region, offer.weight
        )
        if offer.group is not None:
            rest += packed_group(offer.group, groups)
        if offer.plan is not None:
            rest += packed_plan(offer.plan, offer.group)
        args += (offer.job_id, packed_int(offer.seq) + packed_text(offer.user_id) + rest)
    return args


@lru_cache(1024)  # offers of a bulk differ in job, seq and user only
def _packed_rest(
    service: str,
    band: int,
    rank: int,
    step: int,
    run: int,
    cost: float | None,
    region: str | None,
    weight: float,
) -> bytes:
    return (
        packed_text(service)
        + packed_int(band)
        + packed_int(rank)
        + packed_int(step)
        + packed_int(run)
        + (FALSE if cost is None else packed_int(micros(cost)))
        + (packed_text(region) if region else FALSE)
        + packed_float(float(weight) if weight > 0 else 1.0)
    )


def release_args(releases: Iterable[Release]) -> list[Arg]:
    """Encode the releases as arguments, in order. Consecutive releases that differ only in the lease are combined. The
    outcome is a digit, followed by the units used, if known. A lease is followed by a byte 1 and the time after which
    its call was sent, if known."""
    args: list[Arg] = []
    for (service, refund, failed, used), some in itertools.groupby(releases, _service_and_outcome):
        outcome = "1" if refund else _OUTCOMES[failed] if used is None else f"{_OUTCOMES[failed]}{micros(used)}"
        args += (service, outcome, NUL.join([named(release) for release in some]))
    return args


def hold_args(holds: Iterable[Hold]) -> list[Arg]:
    args: list[Arg] = []
    for hold in holds:
        key = hold.id or f"{hold.job_id}:{hold.until}"
        args += (key, hold.job_id, hold.service, hold.region or "", micros(hold.until), hold.band)
    return args


def lease_args(leases: Iterable[Lease], groups: Mapping[str, GroupRules]) -> list[Arg]:
    args: list[Arg] = []
    for lease in leases:
        args += (
            lease.name, lease.job_id, lease.step, lease.run, lease.service, lease.user_id, lease.worker,
            micros(lease.granted_at), lease.region or "", _weight(lease.weight), lease.band,
            "" if lease.cost is None else micros(lease.cost), packed_group(lease.group, groups), lease.plan or "",
        )  # fmt: skip
    return args


def leases(values: Sequence[Any], scope: str) -> list[Lease]:
    return [
        Lease(
            name.decode(), job_id.decode(), step, run, service.decode(), user_id.decode(), worker.decode(),
            granted / SECOND, expires / SECOND, None if region is None else region.decode(), charged, float(weight),
            band, scope,
        )
        for name, job_id, step, run, service, user_id, worker, granted, expires, region, charged, weight, band in (
            _rows(values, 13)
        )
    ]  # fmt: skip


def grants(reply: Sequence[Any], worker: str, scope: str) -> list[Lease]:
    """Decode the leases that an exchange granted. Values that all leases share are in the reply only once."""
    granted = reply[9] / SECOND
    services = [(name, int(expires) / SECOND) for name, expires in _rows(names(reply[10]), 2)]
    return [
        Lease(
            name.decode(), job_id.decode(), step, run, services[number][0], user_id.decode(), worker, granted,
            services[number][1], None if region is None else region.decode(), charged, float(weight), band, scope,
        )
        for name, job_id, step, run, number, user_id, region, charged, weight, band in _rows(reply[12:], 10)
    ]  # fmt: skip


def new_grants(reply: Sequence[Any], offers: Sequence[Offer], worker: str, scope: str) -> list[Lease | None]:
    """Decode the leases of new steps. A reply without rows grants none of them."""
    granted, rows = reply[3] / SECOND, list(_rows(reply[5:], 4)) or [(b"", b"", 0, 0)] * len(offers)
    return [
        Lease(
            name.decode(), offer.job_id, offer.step, offer.run, offer.service, offer.user_id, worker, granted,
            int(expires) / SECOND, None, charged, offer.weight, band, scope,
        ) if name else None
        for offer, (name, expires, charged, band) in zip(offers, rows, strict=True)
    ]  # fmt: skip


def states(reply: Sequence[Any], scopes: Sequence[str]) -> dict[str, ScopeState]:
    _, run_id, replication_id, *rows = reply
    server = identity_of(run_id, replication_id)
    return {
        scope: ScopeState(None if epoch is None else int(epoch), state == b"1", server, state == b"lost")
        for scope, (epoch, state) in zip(scopes, _rows(rows, 2), strict=True)
    }


def positions(values: Sequence[Any]) -> dict[str, QueuePosition]:
    return {
        job_id.decode(): QueuePosition(
            position, work / SECOND, slots, mean / SECOND, free, service.decode(), band, bool(newcomer), retries,
            higher, own, running / SECOND, None if user_slots < 0 else user_slots, user_free, user_running / SECOND,
            rests / SECOND, rate / SECOND, user_rate / SECOND, slot_wait=None if slot_wait < 0 else slot_wait / SECOND,
            groups=_groups_ahead(groups), estimate=estimate / SECOND, estimated_by=ESTIMATED_BY[estimated_by],
        )
        for (
            job_id, position, work, slots, mean, free, service, band, newcomer, retries, higher, own, running,
            user_slots, user_free, user_running, rests, slot_wait, rate, user_rate, groups,
            estimate, estimated_by,
        ) in _rows(values, 23)
    }  # fmt: skip


def _groups_ahead(value: bytes) -> tuple[GroupAhead, ...]:
    if not value:
        return ()
    return tuple(
        GroupAhead(
            path,
            int(ahead),
            None if limit == "-1" else int(limit),
            int(free),
            int(running) / SECOND,
            int(debt) / SECOND,
            int(rate_wait) / SECOND,
        )
        for path, ahead, limit, free, running, debt, rate_wait in _rows(value.decode().split(NUL), 7)
    )


def _rows(values: Sequence[Any], width: int) -> Iterator[tuple[Any, ...]]:
    """Split a flat list into rows. Scripts reply with flat lists, because the server writes each nested list to the
    socket separately."""
    return zip(*[iter(values)] * width, strict=True)


def snapshot(row: Sequence[Any], scope: str) -> ServiceSnapshot:
    (
        name,
        limit,
        leased,
        held,
        paused,
        waiting,
        running,
        holds,
        times,
        mean,
        fifo,
        retries_first,
        users,
        regions,
        unbound,
        rates,
        ratios,
        groups,
    ) = row
    per_cost, used_per_cost = (_ratio(*ratios[:2]), _ratio(*ratios[2:])) if ratios else (None, None)
    service = name.decode()
    bands = () if fifo else (1, 2, 3, 0) if retries_first else (1, 2, 3)
    return ServiceSnapshot(
        service=service,
        limit=limit,
        in_use=leased + held,
        held=held,
        paused=bool(paused),
        waiting=dict(zip((1, 2, 3), waiting, strict=True)),
        leases=tuple(sorted(leases(running, scope), key=lambda each: (each.granted_at, len(each.name), each.name))),
        holds=tuple(_hold(service, hold) for hold in holds),
        virtual_time={band: times[band] for band in sorted(bands)},
        mean_duration=None if mean < 0 else mean / SECOND,
        users=tuple(sorted(map(_user_queue, users), key=lambda queue: (queue.band, queue.tag, queue.user_id))),
        groups=tuple(sorted(map(_group_queue, groups), key=lambda queue: (queue.band, queue.tag, queue.path))),
        regions=tuple(map(_region, regions)),
        unbound=tuple(unbound) if unbound else (0, 0),
        rates=tuple(rate_use(rate, scope.removeprefix("pool:")) for rate in rates),
        seconds_per_unit=per_cost,
        used_per_unit=used_per_cost,
    )


def _ratio(over: int, under: int) -> float | None:
    return over / under if under else None


def _region(row: Sequence[Any]) -> RegionSnapshot:
    name, limit, taken, waiting, retrying, failures, until, probing, latency = row
    resting = until / SECOND if until and not probing else None
    measured = None if latency < 0 else latency / SECOND
    return RegionSnapshot(name.decode(), limit, taken, waiting, retrying, failures, resting, bool(probing), measured)


def _hold(service: str, row: Sequence[Any]) -> Hold:
    job_id, region, until, key, band = row
    own = key.decode()
    if own == f"{job_id.decode()}:{until / SECOND}":  # a hold without an id is stored under a key made of job and time
        own = ""
    return Hold(job_id.decode(), service, None if region is None else region.decode(), until / SECOND, own, band)


def _user_queue(row: Sequence[Any]) -> UserQueue:
    user_id, band, waiting, running, tag, weight, parked, arrival, group = row
    return UserQueue(
        user_id.decode(), band, waiting, running, tag, float(weight), bool(parked), arrival, group.decode() or None
    )


def _group_queue(row: Sequence[Any]) -> GroupQueue:
    path, band, members, running, tag, time, weight, limit, parked, arrival = row
    return GroupQueue(
        path.decode(), band, members, running, tag, time, float(weight), limit or None, bool(parked), arrival
    )
