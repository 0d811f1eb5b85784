"""Claims a step that is not in the queue yet, in one operation of the in-memory dispatcher."""

from __future__ import annotations

from fairlead.dispatch.memory.costs import stated_cost
from fairlead.dispatch.memory.dispatcher import MemoryDispatcher
from fairlead.dispatch.memory.fair_queue import FairBand
from fairlead.dispatch.memory.service import RETRIES, Service
from fairlead.dispatch.port import Granted, Lease, Offer
from fairlead.domain.job import RANK_RETRY


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
    now = dispatcher._clock()
    dispatcher._end_due(now)
    if _would_be_alone(service, offer):
        lease = _grant_alone(dispatcher, service, offer, worker, now)
        dispatcher._announce()
        return lease
    if not dispatcher._offer(offer):
        dispatcher._announce()  # a hold or rest may have ended
        return None
    pick, lease = service.pick(), None
    if pick is not None and service.job_at(pick) == offer.job_id:
        lease = dispatcher._grant(service, pick, worker, now)
        dispatcher._workers.used_budget(worker)
    else:
        dispatcher._leave(dispatcher._entries.pop(offer.job_id))
    dispatcher._announce(frozenset() if lease is None else frozenset((service.name,)))
    return lease


def _would_be_alone(service: Service, offer: Offer) -> bool:
    """Whether this would be the only waiting step of a service that has no rule about users. Such a step need not enter
    the queue: it is the next one."""
    if any(service.waiting) or service.rates is not None or service.rules.user_limit is not None:
        return False
    return service.groups is None and offer.group is None


def _grant_alone(dispatcher: MemoryDispatcher, service: Service, offer: Offer, worker: str, now: float) -> Lease | None:
    """Grant a step that would be alone in the queue, unless the service is at its limit, or the step is known. Its user
    is charged as if the step had been in the queue. No service becomes runnable by this."""
    rules, scope, job_id = service.rules, service.scope, offer.job_id
    if not scope.open or rules.paused or len(service.leases) + len(service.holds) >= rules.limit:
        return None
    if job_id in dispatcher._entries or dispatcher._leases.has_run(job_id, offer.run):
        return None
    number = RETRIES if rules.retries_first and offer.rank == RANK_RETRY else offer.band
    band, user = service.bands[number], service.user(offer.user_id, offer.weight)
    assert isinstance(band, FairBand)  # steps of FIFO services are left to claims
    cost = stated_cost(offer.cost)
    estimate = service.costs.estimate(user, cost)
    band.enter(user.user_id)
    charged = band.charge(user, estimate)
    user.running += 1
    for idle in band.overtaken():
        service.forget_if_idle(idle)
    lease = Lease(
        dispatcher._leases.new_name(scope.epoch), job_id, offer.step, offer.run, service.name, user.user_id,
        worker, now, now + rules.lease_ttl, None, charged, user.weight, number, scope.name,
    )  # fmt: skip
    service.leases[lease.name] = lease, estimate, cost, None
    dispatcher._leases.keep(lease)
    dispatcher._workers.used_budget(worker)
    return lease
