"""Services that are Celery tasks: is there anybody who would run them?"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.runtime.doctor.facts import Facts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity, counted

BROKER_AWAY = Kind("celery-unreachable", Severity.ERROR, "Celery's broker cannot be used", passing=True)
NO_WORKER = Kind("celery-no-worker", Severity.ERROR, "no Celery worker answers", passing=True)
TASK_UNKNOWN = Kind("celery-task-unknown", Severity.ERROR, "no Celery worker knows the task of a service")


def check(facts: Facts) -> Iterator[Finding]:
    for service, celery in sorted(facts.celery.items()):
        task = facts.config.services[service].celery or ""
        if celery.problem is not None:
            yield BROKER_AWAY.found(
                f"tasks of {service} cannot be sent: {celery.problem}",
                fix="start the broker, or correct its address: `fairlead config show` has it under [celery]",
                about=service,
                service=service,
                reason=celery.problem,
            )
        elif not celery.tasks:
            yield NO_WORKER.found(
                f"calls of {service} wait in Celery's queue, and fail after celery.lost_after "
                f"({facts.config.celery.lost_after:g} s)",
                fix="start one: `celery -A APP worker`; if its workers have remote control switched off, set "
                "celery.lost_after to 0",
                about=service,
                service=service,
                task=task,
            )
        elif not any(task in known for known in celery.tasks.values()):
            yield TASK_UNKNOWN.found(
                f"{counted(len(celery.tasks), 'worker', 'answer')}, and none of them has {task}: every job of "
                f"{service} fails",
                fix=f"correct services.{service}.celery: `celery -A APP inspect registered` lists what they know; or "
                "restart the workers with the code that has it: `celery -A APP worker`",
                about=service,
                service=service,
                task=task,
                workers=sorted(celery.tasks),
            )
