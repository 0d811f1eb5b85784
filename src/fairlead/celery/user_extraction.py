"""Determines the user of a call: with `user_of`, by an argument with a usual name, or from the task that sends the
call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

log = logging.getLogger("fairlead.celery")

UserOf = Callable[[str, Sequence[Any], Mapping[str, Any]], Any] | str
"""The name of the argument that is the user, or a function that returns the user for a task's name, arguments and
keyword arguments."""
AUTO = "auto"
"""The default of `user_of`: the user is the first argument that has a value and one of the names in
`USER_ARGUMENTS`."""
USER_ARGUMENTS = (
    "user_id",
    "user",
    "user_pk",
    "user_uuid",
    "username",
    "owner_id",
    "owner",
    "customer_id",
    "customer",
    "account_id",
    "account",
    "tenant_id",
    "tenant",
    "organization_id",
    "organisation_id",
    "org_id",
    "workspace_id",
    "team_id",
)
HEADER = "fairlead_user"
"""The message header that contains a task's inherited user. Tasks that this task sends inherit the user in turn."""
_SEVERAL = ("celery.map", "celery.starmap")


class UserExtractor:
    """Determines the user of calls. If `user_of` is a function and raises, the call has no user; the task is published
    nevertheless."""

    def __init__(self, app: Any, user_of: UserOf | None) -> None:
        self._app = app
        self._function = user_of if callable(user_of) else None
        self._detects = user_of == AUTO
        self._names: tuple[str, ...] = ()
        if self._detects:
            self._names = tuple(spelling for name in USER_ARGUMENTS for spelling in _spellings(name))
        elif isinstance(user_of, str):
            self._names = (user_of,)
        self._positions: dict[str, tuple[int, ...]] = {}
        self._logged = False

    def of(self, name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str | None:
        args, kwargs = args or (), kwargs or {}
        if self._function is not None:
            return self._called(self._function, name, args, kwargs)
        if not self._names:
            return None
        user = self._named(name, args, kwargs) or self.inherited(name, args, kwargs)
        if user is None and self._detects:
            self._warn(name, args, kwargs)
        return user

    def inherited(self, name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str | None:
        """Return the user of the running task that sends this call. Returns None if the call itself names a user, if it
        is not sent by a task, or if that task has no user."""
        if not self._names or (parent := self._app.current_worker_task) is None:
            return None
        if self._named(name, args or (), kwargs or {}) is not None:
            return None
        request = parent.request
        return request.get(HEADER) or self._named(parent.name, request.args or (), request.kwargs or {})

    def _called(
        self, function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str | None:
        try:
            user = function(name, args, kwargs)
        except Exception:
            if not self._logged:
                self._logged = True
                log.exception("user_of failed for a call of %s; such calls are balanced without a user", name)
            return None
        return None if user is None else str(user)

    def _named(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        name, args, kwargs = _first_of_several(name, args, kwargs)
        values = [kwargs[key] for key in self._names if key in kwargs]
        values += [args[position] for position in self._positions_in(name) if position < len(args)]
        if not self._detects:
            return next((str(value) for value in values if value is not None), None)
        first = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(first, Mapping):
            values += [first[key] for key in self._names if key in first]
        return next((user for user in map(_identity, values) if user is not None), None)

    def _positions_in(self, name: str) -> tuple[int, ...]:
        """Return the indices of the positional arguments of a task that may name the user. The result is empty if the
        task is not registered in this process."""
        known = self._positions.get(name)
        if known is None:
            names = self._parameters(name)
            known = tuple(names.index(wanted) for wanted in self._names if wanted in names)
            if names:  # if there are none, the task may be registered later
                self._positions[name] = known
        return known

    def _parameters(self, name: str) -> list[str]:
        """Return the names of the positional parameters of a task."""
        task = self._app.tasks.get(name) if self._app.finalized or self._app.autofinalize else None
        try:
            parameters = inspect.signature(task.run).parameters.values() if task is not None else ()
        except (TypeError, ValueError):  # a function without a Python signature
            return []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [parameter.name for parameter in parameters if parameter.kind in kinds]

    def _warn(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Log a warning about a call in which no user was found, once per process. Calls without arguments, such as a
        periodic clean-up, belong to no user and cause no warning."""
        if self._logged or name.startswith("celery.") or not (args or kwargs):
            return
        self._logged = True
        log.warning(
            "load balancing: no user found in a call of %s(%s). Calls without a user may go to any queue, so that one "
            'user\'s bulk delays everyone. Name the argument that is the user: LoadBalancer(app, user_of="..."), or '
            "compute it: LoadBalancer(app, user_of=lambda name, args, kwargs: ...). If there are no users: "
            "LoadBalancer(app, user_of=None)",
            name,
            ", ".join(self._parameters(name) or kwargs),
        )


def _spellings(name: str) -> Iterable[str]:
    """Return the spellings of an argument's name: `user_id` and `userId`."""
    head, *rest = name.split("_")
    return dict.fromkeys((name, head + "".join(word.capitalize() for word in rest)))


def _first_of_several(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, Sequence[Any], Mapping[str, Any]]:
    """Return the first call in a task of `task.chunks` or `task.map`, which put several calls into one task. The user
    of the first call counts as the user of the task. Any other call is returned unchanged."""
    if name in _SEVERAL and isinstance(calls := kwargs.get("it"), list) and calls:
        inner = kwargs["task"]
        return inner["task"], calls[0] if name == "celery.starmap" else calls[:1], inner.get("kwargs") or {}
    return name, args, kwargs


def _identity(value: Any) -> str | None:
    """Return a text that identifies the user in an argument: the argument itself if it is an id or a name, or the id of
    a record. Returns None if the argument contains no id."""
    if isinstance(value, Mapping):
        value = value.get("id")
    elif not isinstance(value, (str, int, UUID)):
        try:
            value = getattr(value, "pk", None) or getattr(value, "id", None)
        except Exception:  # a property of the user's own class, such as a record of a closed session
            return None
    is_identity = isinstance(value, (str, int, UUID)) and not isinstance(value, bool) and value != ""
    return str(value) if is_identity else None
