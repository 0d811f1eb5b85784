"""Checks and patches the private functions of Celery and kombu that the load balancer uses.

Each use has a fallback that relies on public names only: if a release of Celery or kombu renames or changes a private
function, publishing becomes slower and a warning is logged, but nothing breaks.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

log = logging.getLogger("fairlead.celery")

_MARKER = "_fairlead_patch"
"""Attribute that marks the balancer's functions. `__wrapped__` cannot serve as the marker, because other
instrumentation, such as tracing, sets it too."""
_reported: set[tuple[str, str]] = set()


def usable(owner: Any, name: str, *parameters: str, fallback: str) -> bool:
    """Return whether a class still has the function `name`, with `parameters` as its first parameters. If not, log
    `fallback`, which says what happens instead, once per process."""
    function = getattr(owner, name, None)
    if function is not None and _takes(function, parameters):
        return True
    if (owner.__name__, name) not in _reported:
        _reported.add((owner.__name__, name))
        log.warning("load balancing: %s.%s is not as expected in this version; %s", owner.__name__, name, fallback)
    return False


def _takes(function: Any, parameters: tuple[str, ...]) -> bool:
    try:
        actual = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in actual):
        return True  # a wrapper that hides the signature
    return tuple(parameter.name for parameter in actual)[: len(parameters)] == parameters


def patch_once(owner: Any, name: str, replacement: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace the function `name` of a class by `replacement(function)`, unless it is patched already. A patched
    function is recognized by a marker, which is also visible on a wrapper that other code has put around it with
    `functools.wraps`."""
    original = getattr(owner, name)
    if not hasattr(original, _MARKER):
        patched = wraps(original)(replacement(original))
        setattr(patched, _MARKER, True)
        setattr(owner, name, patched)
