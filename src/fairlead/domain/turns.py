"""Turns: slots whose callers do the work themselves. A turn is a row like a job's, with one step and an owner.

Its id says what it is: a UUID of version 8, where a job's is of version 7 and both begin with the time. So whoever is
granted a lease knows whether to execute something or to hand the slot over, without asking the truth first.
"""

from __future__ import annotations

from typing import Any

from fairlead.domain import retry
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.processes import process_of, worker_name

VERSION, AT, LENGTH = "8", 14, 36

NOT_TAKEN = "NOT_TAKEN"
WAITER_GONE = "WAITER_GONE"
HOLDER_DIED = "HOLDER_DIED"

ACCEPT_WITHIN = 2.0
"""Seconds that a caller has to take the slot it is offered, before the next one is."""


UNHEARD_AFTER = 10.0
"""Seconds that a waiting caller outside may be silent before it is taken for gone."""

OUTSIDE = "outside"
"""Behind the name of the process that has a turn, if the caller is none of its own: it asks over HTTP, does not end
with that process, and may go on with another."""


def turn_id(uuid7: str) -> str:
    return f"{uuid7[:AT]}{VERSION}{uuid7[AT + 1 :]}"


def is_turn(job_id: str) -> bool:
    return len(job_id) == LENGTH and job_id[AT] == VERSION


def owner(process: str, *, outside: bool) -> str:
    """What the row says of where its caller is."""
    return worker_name(process, OUTSIDE if outside else "")


def is_outside(owner: str) -> bool:
    return owner.endswith(f"/{OUTSIDE}")


def owner_at(process: str, job: Job) -> str:
    """Its owner when this process has it from now on."""
    return owner(process, outside=is_outside(job.turn or ""))


# ---------------------------------------------------------------- why a turn came to nothing


def not_taken(job: Job) -> dict[str, Any]:
    text = f"the slot of {job.service} was offered, and not taken within {ACCEPT_WITHIN:g} s"
    return {"code": NOT_TAKEN, "message": text}


def waiter_gone(job: Job) -> dict[str, Any]:
    return {"code": WAITER_GONE, "message": f"the process {process_of(job.turn or '')}, whose caller waited, is gone"}


def holder_died(job: Job) -> dict[str, Any]:
    return {
        "code": HOLDER_DIED,
        "message": f"the process {process_of(job.turn or '')}, whose caller had the slot, died or lost its lease",
    }


def unheard(job: Job, why: str) -> dict[str, Any]:
    """The same of a caller without a process of its own, which must be heard of."""
    return {"code": WAITER_GONE if job.status is JobStatus.PENDING else HOLDER_DIED, "message": why}


def waited_too_long(job: Job) -> dict[str, Any]:
    text = f"no slot of {job.service} was free within the wait_timeout"
    return {"code": retry.RESOURCE_EXHAUSTED, "message": text}


def overran(job: Job, timeout: float) -> dict[str, Any]:
    return {"code": retry.TIMEOUT, "message": f"the slot of {job.service} was kept longer than its {timeout:g} s"}


def said(message: str) -> dict[str, Any]:
    """What the holder itself says of its failure."""
    return {"code": retry.EXCEPTION, "message": message}
