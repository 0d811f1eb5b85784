"""Fairlead: the line in front of scarce AI endpoints. A durable, fair job queue and gateway."""

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
    Unavailable,
    WrongState,
)
from fairlead.executors.port import Call
from fairlead.handle import JobHandle, Receipt
from fairlead.runtime.submission import Submission
from fairlead.runtime.view import JobView

__version__ = "0.1.0"

__all__ = [
    "Call",
    "Config",
    "ConfigError",
    "Fairlead",
    "FairleadError",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobHandle",
    "JobStatus",
    "JobView",
    "NotFound",
    "Permanent",
    "Priority",
    "Receipt",
    "RequestError",
    "ResultTimeout",
    "Retry",
    "Settings",
    "StoreError",
    "Submission",
    "Unavailable",
    "WrongState",
    "__version__",
]
