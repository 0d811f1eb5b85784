"""Claims a step that is not in the queue yet, in one operation of the in-memory dispatcher."""

from __future__ import annotations

from fairlead.dispatch.memory.dispatcher import MemoryDispatcher
from fairlead.dispatch.port import Granted, Lease, Offer


def claim_new(dispatcher: MemoryDispatcher, offer: Offer, worker: str, granted: Granted) -> None:
    """Offer a step, and grant it to this worker if it is the next one of its service. If it is not granted at once,
    because of a limit or because another step is next, it does not stay in the queue.

    This is no claim of the worker: what the worker last claimed for stays as it is, because pools rely on it. Services
    in pools, with regions or with FIFO order are left to claims."""
    granted(_claim(dispatcher, offer, worker))


def _claim(dispatcher: MemoryDispatcher, offer: Offer, worker: str) -> Lease | None:
    service = dispatcher._services.get(offer.service)
    if service is None or service.pool is not None or service.rules.regions or service.fifo:
        return None
    if not dispatcher._offer(offer):
        return None
    now = dispatcher._clock()
    dispatcher._end_due(now)
    pick, lease = service.pick(), None
    if pick is not None and service.job_at(pick) == offer.job_id:
        lease = dispatcher._grant(service, pick, worker, now)
        dispatcher._workers.used_budget(worker)
    else:
        dispatcher._leave(dispatcher._entries.pop(offer.job_id))
    dispatcher._announce(frozenset() if lease is None else frozenset((service.name,)))
    return lease
