"""The keyspace.

The scope is the hash tag of all its keys, so that a Cluster keeps them in one slot. Every script receives all keys that
it may touch. Band and lane are part of members rather than of keys, so the number of keys is fixed.

    fairlead:scopes                the set of scopes, each with a service, joined by NUL
    fairlead:leader                the leader, as `term holder`; expires unless renewed
    fairlead:output:<job>          the stream of the chunks that the job's steps have emitted; expires
    fairlead:wake:<process>        the channel on which a process receives the names of runnable services

One of each per scope, `fairlead:{service:s}:...` or `fairlead:{pool:p}:...`:

    meta       epoch, open (1; 0: being rebuilt; lost: a rebuild is due, because a key has vanished or virtual times
               have too many digits), version, services, pool_limit, counter (of lease names), and rules:<service>,
               state:<service>, kept:<service> (in the formats of include/scope.lua), costs:<service>
               (include/costs.lua), pool (the fair share of its services), rates (include/rates.lua), rate:<group>
               (include/member_rates.lua), unmet (by service, the bands in which a worker that is bound to them has
               found nothing since the last wakeup)
    waiters    processes with unused budget: process -> time of registration, time of the last wakeup, services, and
               the bands, if it does not claim from all
    workers    of a pool: w:<worker> -> its last claim, s:<worker> -> its unused budget
    entries    every waiting step: job -> seq, user, service, band, rank, step, run, cost, region, weight
    onlease    job -> its leases: name and run of each
    windows    of users and groups with a rate: service NUL id -> the window (include/windows.lua)
    rated      the same members by the time at which their window has to be looked at, or an earlier one

One of each per service, `...:s:<service>:...`. `lane` is a band followed by `-` (unbound), `=<region>`, several regions
as `=eu+us`, or a preferred region and the alternatives, if not any, as `=us>eu+us`. Numbers have a fixed width:

    users      user -> weight, waiting, running, mean, parked, virtual time by band, waiting by lane
               of a group, under byte 1 and its path: likewise (include/groups.lua)
    heads      the order of users: lane NUL virtual-time user (FIFO: lowest seq), all of score 0, so sorted as text
    line       the queues: lane NUL user order job, likewise; members sort by user and then by order
    seqs       of FIFO lanes: lane NUL seq job, for exact positions
    idle       users with nothing waiting or running but a debt: band virtual-time user
    leases     name -> job, step, run, user, worker, granted, region, charge, weight, band, estimate, expires; if a
               rate counts it or it stated its cost: its windows, units, when it was sent (or false), its cost or false
    holds      key -> job, region, until, band
    ends       holds by their end
    slots      leases and holds bound to a region: region NUL name
    costs      number and sum of the costs that wait: of a FIFO lane, or of lane NUL user in fair lanes

Multiple values are concatenated MessagePack. Times are whole microseconds, which doubles represent exactly up to 2^53
(the year 2255).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

_OF_SCOPE = ("meta", "waiters", "workers", "entries", "onlease")
_OF_SERVICE = ("users", "heads", "line", "seqs", "idle", "leases", "holds", "ends", "slots", "costs")
_OF_RATES = ("windows", "rated")
_MARK_DIGITS = 10


def scopes_key(prefix: str) -> str:
    return f"{prefix}:scopes"


def leader_key(prefix: str) -> str:
    return f"{prefix}:leader"


def wake_channel(prefix: str, process: str) -> str:
    return f"{prefix}:wake:{process}"


def output_key(prefix: str, job_id: str) -> str:
    return f"{prefix}:output:{job_id}"


def scope_key(prefix: str, scope: str, name: str) -> str:
    return f"{prefix}:{{{scope}}}:{name}"


def keys_of(prefix: str, scope: str, services: Iterable[str]) -> list[str]:
    """All keys of a scope, in the order expected by `scripts/include/scope.lua`."""
    keys = [scope_key(prefix, scope, name) for name in _OF_SCOPE]
    keys += [scope_key(prefix, scope, f"s:{service}:{name}") for service in services for name in _OF_SERVICE]
    keys += [scope_key(prefix, scope, name) for name in _OF_RATES]
    return keys


def scope_mark(scope: str) -> str:
    """The digits with which all lease names of a scope end. Each scope has its own counter; these digits make the names
    unique across scopes, which heartbeats need because they send only the names."""
    return f"{zlib.crc32(scope.encode()):0{_MARK_DIGITS}}"
