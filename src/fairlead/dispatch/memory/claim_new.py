"""Claims a step that is not in the queue yet, in one operation of the in-memory dispatcher."""

from __future__ import annotations

from fairlead.dispatch.memory.dispatcher import MemoryDispatcher
from fairlead.dispatch.port import Claim, Lease, Offer


def claim_new(dispatcher: MemoryDispatcher, offer: Offer, claim: Claim) -> Lease | None:
    """Offer a step and claim it, with a claim that accepts `only` its job. If it is not granted at once, because of a
    limit or because another step is next, it does not stay in the queue, and None is returned. Later offers of the step
    are ignored while its lease lasts."""
    if not dispatcher._offer(offer):
        return None
    leases: list[Lease] = []
    wake_again = dispatcher._claim(claim, dispatcher._clock(), leases)
    waiting = dispatcher._entries.pop(offer.job_id, None)
    if waiting is not None:
        dispatcher._leave(waiting)
    dispatcher._announce(wake_again)
    return leases[0] if leases else None
