"""The keyspace. All keys of a scope carry it as their hash tag, so on a Cluster they are in one slot, and every script
is given all the keys that it may touch. Band and lane are part of members, not of keys, so their number is known
beforehand.

    fairlead:scopes                the scopes there are, each with a service, joined by NUL: a set
    fairlead:leader                who leads, as `term holder`: it expires unless renewed
    fairlead:wake:<process>        the channel on which one process is told of services with something to do

One of each per scope, `fairlead:{service:s}:...` or `fairlead:{pool:p}:...`:

    meta       epoch, open (0: being rebuilt), version, services, pool_limit, counter (of lease names), and
               rules:<service>, state:<service> (both as include/scope.lua takes them), pool (its turns)
    waiters    processes with room: process -> when it said so, when it was last told, its services
    workers    of a pool: w:<worker> -> its last claim, s:<worker> -> the room that was left
    entries    every step in line: job -> seq, user, service, band, rank, step, run, cost, region, weight
    onlease    job -> its leases: name, run of each

Per service, `...:s:<service>:...`; `lane` is a band with `-` (unbound), `=<region>`, or several: `=eu+us`. Numbers
are of fixed width:

    users      user -> weight, waiting, running, mean, parked, virtual time by band, waiting by lane
    heads      who is next: lane NUL virtual-time user (FIFO: lowest seq), all of score 0, so sorted as text
    line       the lines: lane NUL user order job, likewise: one set whose members sort by user and then by order
    seqs       of FIFO lanes: lane NUL seq job, for exact places
    idle       users with nothing to do but a debt: band virtual-time user
    leases     name -> job, step, run, user, worker, granted, region, charge, weight, band, estimate, expires
    holds      key -> job, region, until, band
    ends       holds by the time at which they end
    slots      leases and holds bound to a region: region NUL name

Several values are packed by MessagePack, one after the other. Numbers are whole microseconds; as doubles they are exact
up to 2^53, which is the year 2255.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

_OF_SCOPE = ("meta", "waiters", "workers", "entries", "onlease")
_OF_SERVICE = ("users", "heads", "line", "seqs", "idle", "leases", "holds", "ends", "slots")
_MARK_DIGITS = 10


def scopes_key(prefix: str) -> str:
    return f"{prefix}:scopes"


def leader_key(prefix: str) -> str:
    return f"{prefix}:leader"


def wake_channel(prefix: str, process: str) -> str:
    return f"{prefix}:wake:{process}"


def scope_key(prefix: str, scope: str, name: str) -> str:
    return f"{prefix}:{{{scope}}}:{name}"


def keys_of(prefix: str, scope: str, services: Iterable[str]) -> list[str]:
    """All keys of a scope, in the order in which `scripts/include/scope.lua` takes them."""
    keys = [scope_key(prefix, scope, name) for name in _OF_SCOPE]
    keys += [scope_key(prefix, scope, f"s:{service}:{name}") for service in services for name in _OF_SERVICE]
    return keys


def scope_mark(scope: str) -> str:
    """The last digits of the lease names of a scope. Counters are each scope's own, but names are not to repeat in
    another, and a heartbeat names leases only."""
    return f"{zlib.crc32(scope.encode()):0{_MARK_DIGITS}}"
