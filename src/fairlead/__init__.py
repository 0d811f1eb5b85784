"""Fairlead: the line in front of scarce AI endpoints. A durable, fair job queue and gateway."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlead.app import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.job import JobStatus, Priority
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
from fairlead.handle import BatchHandle, JobHandle, Receipt
from fairlead.runtime.batch_view import BatchView, ItemView
from fairlead.runtime.reasons import Reason
from fairlead.runtime.submission import Submission
from fairlead.runtime.turns.block import Turn
from fairlead.runtime.turns.view import TurnView
from fairlead.runtime.view import JobView
from fairlead.runtime.why import Why
from fairlead.version import __version__

if TYPE_CHECKING:
    from fairlead.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "BatchHandle",
    "BatchView",
    "Call",
    "Client",
    "Config",
    "ConfigError",
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
    "ResultTimeout",
    "Retry",
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
    """The clients need httpx2, which the embedded line does without."""
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        client = import_module("fairlead.client")
    except ModuleNotFoundError as error:
        raise ImportError(f"fairlead.{name} needs the extra: pip install 'fairlead[client]'") from error
    return getattr(client, name)
