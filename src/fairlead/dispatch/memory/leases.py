"""The dispatcher's leases, indexed by name and by job."""

from __future__ import annotations

from fairlead.dispatch.port import Lease


class Leases:
    def __init__(self) -> None:
        self.by_name: dict[str, Lease] = {}
        """The leases by name. `renew` reads them from another thread."""
        self._by_job: dict[str, tuple[Lease, ...]] = {}
        """The leases by job. A job has several if it was requeued before its lost lease was released."""
        self._counter = 0

    def new_name(self, epoch: int | None) -> str:
        self._counter += 1
        return f"{epoch}:{self._counter}"

    def keep(self, lease: Lease) -> None:
        self.by_name[lease.name] = lease
        others = self._by_job.get(lease.job_id)
        self._by_job[lease.job_id] = (lease,) if others is None else (*others, lease)

    def keep_restored(self, lease: Lease) -> None:
        """Add a restored lease. The counter of lease names continues after the number in this lease's name, so that no
        later lease gets the same name."""
        counter = lease.name.rpartition(":")[2]
        if counter.isdigit():
            self._counter = max(self._counter, int(counter))
        self.keep(lease)

    def forget(self, lease: Lease) -> None:
        if self.by_name.get(lease.name) is lease:
            del self.by_name[lease.name]
        others = self._by_job.pop(lease.job_id)
        if len(others) > 1:
            self._by_job[lease.job_id] = tuple(other for other in others if other is not lease)

    def has_run(self, job_id: str, run: int) -> bool:
        """Whether there is a lease for this run of the job, or for a newer run."""
        leases = self._by_job.get(job_id)
        return leases is not None and any(lease.run >= run for lease in leases)

    def expired(self, now: float) -> list[Lease]:
        # A linear scan is fast enough, because limits bound the number of leases. Without an index by expiry, a
        # heartbeat is a single assignment.
        past = [lease for lease in self.by_name.values() if lease.expires_at <= now]
        return sorted(past, key=lambda lease: (lease.expires_at, lease.name))
