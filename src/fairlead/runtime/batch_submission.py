"""A batch as a caller asks for it, checked whole before anything is stored: every bad item is told, not only the
first."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import orjson
from uuid_utils import uuid7

from fairlead.domain.batch import Batch, BatchItem
from fairlead.domain.config import Config
from fairlead.domain.transitions import Submit
from fairlead.domain.wire import NotJson, to_json
from fairlead.errors import InvalidInput, RequestError
from fairlead.runtime.submission import MAX_KEY, MAX_METADATA, MAX_USER_ID, Checks, Submission, check_text, fingerprint
from fairlead.store.port import CreateBatch

MAX_NAME = 255
MAX_CUSTOM_ID = 255
MOST_ERRORS = 100
AT_A_TIME = 250
"""Items that are checked before others get their turn on the event loop."""

_OF_A_JOB = frozenset(each.name for each in fields(Submission))
ITEM_FIELDS = _OF_A_JOB | {"custom_id"}
DEFAULTS = _OF_A_JOB - {"user_id", "input_data", "metadata"}
"""What may be said once for all items. The batch's `metadata` is its own."""


class BatchInvalid(InvalidInput):
    """`found` are the errors of the items, each with its pointer, as many as are told."""

    def __init__(self, found: Sequence[RequestError]) -> None:
        first = found[0]
        many = f"{len(found)}{' or more' if len(found) >= MOST_ERRORS else ''} errors; the first: "
        super().__init__(first.message if len(found) == 1 else many + first.message, pointer=first.pointer)
        self.found = tuple(found)


@dataclass(frozen=True, slots=True)
class BatchSubmission:
    """Each item is a mapping with the fields of a job, but for `user_id`, and perhaps a `custom_id`. `defaults` count
    for the items that do not say otherwise."""

    items: Sequence[Any]
    user_id: str = "anonymous"
    name: str | None = None
    metadata: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """What is to be stored. The submits are in the order of the items."""

    create: CreateBatch
    submits: list[Submit]


async def check_batch(
    wanted: BatchSubmission, config: Config, *, now: float, idempotency_key: str | None
) -> CheckedBatch:
    user_id = check_text(wanted.user_id, "user_id", MAX_USER_ID)
    name = None if wanted.name is None else check_text(wanted.name, "name", MAX_NAME)
    if idempotency_key is not None:
        check_text(idempotency_key, "Idempotency-Key", MAX_KEY)
    metadata_json = _metadata(wanted.metadata)
    if unknown := sorted(set(wanted.defaults) - DEFAULTS):
        known = ", ".join(sorted(DEFAULTS | {"items", "metadata", "name", "user_id"}))
        raise BatchInvalid(
            [
                InvalidInput(f"{each[:100]!r} is no field of a batch; known are: {known}", pointer=f"/{each[:100]}")
                for each in unknown
            ]
        )
    most = config.server.max_bulk
    if not 1 <= len(wanted.items) <= most:
        raise InvalidInput(f"items must hold 1 to {most} items, not {len(wanted.items)}", pointer="/items")
    checking = _Items(wanted, config, now)
    for start in range(0, len(wanted.items), AT_A_TIME):
        for number, item in enumerate(wanted.items[start : start + AT_A_TIME], start):
            checking.take(number, item)
        await asyncio.sleep(0)
    if checking.wrong:
        raise BatchInvalid(checking.wrong)
    submits = checking.submits
    items = tuple(
        BatchItem(number, custom_id, submit.job.id)
        for number, (custom_id, submit) in enumerate(zip(checking.custom_ids, submits, strict=True))
    )
    batch = Batch(str(uuid7()), user_id, len(items), now, name, metadata_json)
    body_hash = None if idempotency_key is None else checking.hash_of(name, metadata_json)
    return CheckedBatch(CreateBatch(batch, items, idempotency_key, body_hash), submits)


class _Items:
    def __init__(self, wanted: BatchSubmission, config: Config, now: float) -> None:
        self._user_id = wanted.user_id
        self._defaults = wanted.defaults
        self._checks = Checks(config, now=now)
        self._numbers: dict[str, int] = {}
        self._said: list[Submission] = []
        self.custom_ids: list[str | None] = []
        self.submits: list[Submit] = []
        self.wrong: list[RequestError] = []

    def take(self, number: int, item: Any) -> None:
        if len(self.wrong) >= MOST_ERRORS:
            return
        try:
            self._take(number, item)
        except RequestError as error:
            for each in error.found if isinstance(error, BatchInvalid) else (error,):
                each.pointer = f"/items/{number}{each.pointer or ''}"
                self.wrong.append(each)

    def _take(self, number: int, item: Any) -> None:
        if not isinstance(item, Mapping):
            raise InvalidInput("an item must be a JSON object", pointer="")
        said = {**self._defaults, **item}
        if not said.keys() <= ITEM_FIELDS or "feature_name" not in said:
            raise BatchInvalid(_misnamed(said))
        if said.setdefault("user_id", self._user_id) != self._user_id:
            raise InvalidInput("an item is its batch's user's; leave user_id out", pointer="/user_id")
        custom_id = said.pop("custom_id", None)
        if custom_id is not None:
            check_text(custom_id, "custom_id", MAX_CUSTOM_ID)
            first = self._numbers.setdefault(custom_id, number)
            if first != number:
                raise InvalidInput(f"this custom_id is that of item {first} too", pointer="/custom_id")
        submission = Submission(**said)
        self.submits.append(self._checks.submit_of(submission))
        self.custom_ids.append(custom_id)
        self._said.append(submission)

    def hash_of(self, name: str | None, metadata_json: str | None) -> str:
        """Two batches with the same key must be the same request."""
        whole = hashlib.sha256(orjson.dumps((name, metadata_json, self.custom_ids)))
        for submission, submit in zip(self._said, self.submits, strict=True):
            whole.update(fingerprint(submission, submit.input_json, submit.metadata_json).encode())
        return whole.hexdigest()


def _misnamed(said: Mapping[str, Any]) -> list[RequestError]:
    known = ", ".join(sorted(ITEM_FIELDS))
    found: list[RequestError] = [
        InvalidInput(f"{str(name)[:100]!r} is no field of an item; known are: {known}", pointer=_pointer(name))
        for name in said
        if name not in ITEM_FIELDS
    ]
    if "feature_name" not in said:
        found.append(InvalidInput("feature_name is missing, here and for the batch", pointer="/feature_name"))
    return found


def _pointer(name: Any) -> str:
    return f"/{str(name)[:100].replace('~', '~0').replace('/', '~1')}"


def _metadata(value: Mapping[str, Any] | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidInput("metadata must be a JSON object", pointer="/metadata")
    try:
        text = to_json(value)
    except NotJson as error:
        raise InvalidInput(f"metadata is not JSON: {error}", pointer="/metadata") from None
    if len(text) > MAX_METADATA:
        raise InvalidInput(f"metadata is over {MAX_METADATA} bytes", pointer="/metadata")
    return text
