"""File batches: batches whose requests are the lines of a file, as OpenAI's clients create them (docs/adr/0041)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import orjson

from fairlead.domain.fast_dataclass import StringEnum

WINDOWS: Mapping[str, float] = {"24h": 86400.0, "1h": 3600.0, "15m": 900.0}
ENDPOINTS = tuple(
    f"/v1/{path}"
    for path in (
        "responses",
        "chat/completions",
        "embeddings",
        "completions",
        "moderations",
        "images/generations",
        "images/edits",
    )
)
BATCH, OUTPUT = "batch", "batch_output"
"""The purposes of the files of a batch: of its requests, and of its results and errors."""
MOST_LINES = 50_000
LARGEST_FILE = 200 * 1024 * 1024
MOST_PAIRS, LONGEST_NAME, LONGEST_VALUE = 16, 64, 512
"""The number of pairs of `metadata`, and the number of characters of their names and values."""


class FileBatchStatus(StringEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = frozenset(
    {FileBatchStatus.FAILED, FileBatchStatus.COMPLETED, FileBatchStatus.EXPIRED, FileBatchStatus.CANCELLED}
)


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with the input file. `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class FileBatch:
    """The row of a file batch. `version` grows with every change.

    `parts` is the number of parts that were submitted, `submitted` the number of their lines, and `offset` where the
    next part begins in the input file. `lowers_only`: the key of a user created it. `ended_at` is set when nothing is
    left to do, `moments` when each status began. `expected_at` is the end that was expected at creation.
    """

    id: str
    user_id: str
    endpoint: str
    input_file_id: str
    window: str
    created_at: float
    expires_at: float
    version: int = 0
    status: FileBatchStatus = FileBatchStatus.VALIDATING
    ended_at: float | None = None
    metadata: Mapping[str, str] | None = None
    lowers_only: bool = False
    keep_output_for: float | None = None
    request_key: str | None = None
    expected_at: float | None = None
    model: str | None = None
    total: int = 0
    parts: int = 0
    submitted: int = 0
    offset: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Sequence[LineError] = ()
    usage: Mapping[str, int] | None = None
    moments: Mapping[str, float] = field(default_factory=dict)

    def moved(self, status: FileBatchStatus, now: float, **changes: Any) -> FileBatch:
        """This batch with another status."""
        return replace(self, status=status, moments={**self.moments, f"{status.value}_at": now}, **changes)

    @property
    def output_files(self) -> list[str]:
        return [file_id for file_id in (self.output_file_id, self.error_file_id) if file_id is not None]

    def part_key(self, part: int) -> str:
        """The idempotency key of a part."""
        return f"{self.id}:{part}"

    def data_json(self) -> str:
        """The fields that have no column of their own."""
        values = asdict(self)
        for name in _COLUMNS:
            del values[name]
        return orjson.dumps(values).decode()


_COLUMNS = ("id", "user_id", "version", "ended_at", "created_at")
_FIELDS = frozenset(each.name for each in fields(FileBatch))


def file_batch_of(row: Sequence[Any]) -> FileBatch:
    """Decode a row: id, user, version, created_at, ended_at, data. Fields that only later releases know are ignored."""
    id_, user_id, version, created_at, ended_at, data = row
    values = {name: value for name, value in orjson.loads(data).items() if name in _FIELDS}
    values["status"] = FileBatchStatus(values["status"])
    values["errors"] = tuple(LineError(**error) for error in values["errors"])
    ended = None if ended_at is None else ended_at / 1e6
    return FileBatch(id_, user_id, version=version, created_at=created_at / 1e6, ended_at=ended, **values)


def expected_end(batch: FileBatch, now: float) -> float | None:
    """When the batch is expected to end: at the rate of its lines so far, else as expected at its creation. None if
    that is not known."""
    if batch.status.ended:
        return batch.moments.get(f"{batch.status.value}_at")
    done, began = batch.completed + batch.failed, batch.moments.get("in_progress_at")
    if not done or began is None:
        return batch.expected_at
    return now + max(0.0, now - began) / done * (batch.total - done)


_MOMENTS = tuple(
    f"{name}_at" for name in ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
)


def openai_view(batch: FileBatch, now: float) -> dict[str, Any]:
    """The batch as the JSON object that OpenAI's clients read. `fairlead` is an addition."""
    expected = expected_end(batch, now)
    errors = [asdict(error) for error in batch.errors]
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": int(batch.created_at),
        "expires_at": int(batch.expires_at),
        **{name: None if (at := batch.moments.get(name)) is None else int(at) for name in _MOMENTS},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": None if batch.usage is None else _usage(batch.usage),
        "metadata": batch.metadata,
        "fairlead": {
            "expected_at": None if expected is None else int(expected),
            "fits_window": None if expected is None else expected <= batch.expires_at,
        },
    }


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": usage["input_tokens"],
        "input_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        "output_tokens": usage["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }
