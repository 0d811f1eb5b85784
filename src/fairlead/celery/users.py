"""Whose call it is."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

log = logging.getLogger("fairlead.celery")

UserOf = Callable[[str, Sequence[Any], Mapping[str, Any]], Any] | str
"""Of a task's name, its arguments and keyword arguments; or the name of the argument that is the user."""


class Users:
    """Finds the user of a call. A hook that fails costs the call its user, never its place."""

    def __init__(self, user_of: UserOf | None, task_named: Callable[[str], Any]) -> None:
        self._user_of = user_of
        self._task_named = task_named
        self._places: dict[str, int | None] = {}
        self._said = False

    def of(self, name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str | None:
        if self._user_of is None:
            return None
        args, kwargs = args or (), kwargs or {}
        try:
            if isinstance(self._user_of, str):
                user = self._argument(self._user_of, name, args, kwargs)
            else:
                user = self._user_of(name, args, kwargs)
        except Exception:
            if not self._said:
                self._said = True
                log.exception("user_of failed for a call of %s; it and others like it are balanced as nobody's", name)
            return None
        return None if user is None else str(user)

    def _argument(self, wanted: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if wanted in kwargs:
            return kwargs[wanted]
        if name not in self._places:
            self._places[name] = self._place(wanted, name)
        place = self._places[name]
        return args[place] if place is not None and place < len(args) else None

    def _place(self, wanted: str, name: str) -> int | None:
        """Which positional argument of a task has this name, if the task is known here."""
        task = self._task_named(name)
        if task is None:
            return None
        names = [parameter.name for parameter in inspect.signature(task.run).parameters.values()]
        return names.index(wanted) if wanted in names else None
