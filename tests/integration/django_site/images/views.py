"""Calls as a view makes them, printed as JSON: single calls, a group, a chord, a call that another route sends
elsewhere."""

import json
from typing import Any

from celery import chord, group

from fairlead.celery import get_all_queue_loads
from images.tasks import generate, report, total

WAIT = 60


def everything() -> dict[str, Any]:
    singles = [generate.delay(user_id=n, prompt=f"p{n}") for n in range(5)]
    many = group(generate.s(7, f"g{n}") for n in range(10)).apply_async()
    summed = chord((generate.s(8, f"c{n}") for n in range(5)), total.s()).apply_async()
    return {
        "singles": [single.get(timeout=WAIT)["queue"] for single in singles],
        "group": [part["queue"] for part in many.get(timeout=WAIT)],
        "chord": summed.get(timeout=WAIT),
        "routed": report.delay().get(timeout=WAIT),
    }


def everything_shown() -> None:
    print(json.dumps(everything()))


def loads() -> None:
    print(json.dumps(get_all_queue_loads()))
