"""Groups go through one function of Celery's, whichever app they belong to; this puts ours around it, once."""

from __future__ import annotations

from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from celery import group

from fairlead.celery.publishing import Publishing

_publishing: WeakKeyDictionary[Any, Publishing] = WeakKeyDictionary()


def spread_groups_of(app: Any, publishing: Publishing) -> None:
    _publishing[app] = publishing
    if not hasattr(group._apply_tasks, "__wrapped__"):
        group._apply_tasks = _spreading(group._apply_tasks)


def leave_groups_of(app: Any) -> None:
    _publishing.pop(app, None)


def _spreading(original: Any) -> Any:
    @wraps(original)
    def apply_tasks(self: Any, tasks: Any, producer: Any = None, app: Any = None, *more: Any, **options: Any) -> Any:
        publishing = _publishing.get(app or self.app)
        if publishing is None:
            return original(self, tasks, producer, app, *more, **options)
        return publishing.spread(
            tasks, options, lambda reserved: original(self, reserved, producer, app, *more, **options)
        )

    return apply_tasks
