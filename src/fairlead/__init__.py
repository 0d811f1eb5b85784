"""Fairlead: a durable, fair job queue and gateway for scarce AI endpoints."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.app import Fairlead
from fairlead.app.declarations import ServiceOptions
from fairlead.app.handle import BatchHandle, JobHandle, Receipt
from fairlead.app.turns.context_manager import Turn
from fairlead.config import Settings
from fairlead.domain.batch import BatchView, ItemView
from fairlead.domain.config import Config
from fairlead.domain.job import JobStatus, Priority
from fairlead.domain.output import Chunk, End, Restart
from fairlead.domain.submission import Submission
from fairlead.domain.turns import TurnView
from fairlead.domain.views import JobView, Reason, Why
from fairlead.engine.roles import Roles
from fairlead.errors import (
    ConfigError,
    FairleadError,
    JobCancelled,
    JobError,
    JobFailed,
    NotFound,
    Permanent,
    RequestError,
    ResultTimeout,
    Retry,
    StoreError,
    TurnEnded,
    TurnError,
    TurnLost,
    TurnTimeout,
    Unavailable,
    WrongState,
)
from fairlead.executors.port import Call
from fairlead.version import __version__

if TYPE_CHECKING:
    from fairlead.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "BatchHandle",
    "BatchView",
    "Call",
    "Chunk",
    "Client",
    "Config",
    "ConfigError",
    "End",
    "Fairlead",
    "FairleadError",
    "ItemView",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobHandle",
    "JobStatus",
    "JobView",
    "NotFound",
    "Permanent",
    "Priority",
    "Reason",
    "Receipt",
    "RequestError",
    "Restart",
    "ResultTimeout",
    "Retry",
    "Roles",
    "ServiceOptions",
    "Settings",
    "StoreError",
    "Submission",
    "Turn",
    "TurnEnded",
    "TurnError",
    "TurnLost",
    "TurnTimeout",
    "TurnView",
    "Unavailable",
    "Why",
    "WrongState",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import the HTTP clients when they are first used. They need httpx2, which an app that does not use them need not
    install."""
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        client = import_module("fairlead.client")
    except ModuleNotFoundError as error:
        raise ImportError(f"fairlead.{name} needs the extra: pip install 'fairlead[client]'") from error
    return getattr(client, name)
