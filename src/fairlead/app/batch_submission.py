"""Checks a submitted batch as a whole before anything is stored, and reports the errors of all items."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from time import perf_counter
from typing import Any

import orjson

from fairlead.domain.batch import Batch, BatchItem
from fairlead.domain.config import Config
from fairlead.domain.json_codec import NotJson, to_json
from fairlead.domain.submission import MAX_KEY, MAX_METADATA, MAX_USER_ID, Submission, SubmissionChecker, fingerprint
from fairlead.domain.transitions import Submit
from fairlead.domain.validation import check_text, user_text
from fairlead.domain.webhooks import BATCH_EVENTS, JOB_EVENTS, JobWebhook, check_webhook
from fairlead.engine.clock import id_at
from fairlead.errors import InvalidInput, RequestError
from fairlead.store.port import CreateBatch

MAX_NAME = 255
MAX_CUSTOM_ID = 255
MOST_ERRORS = 20
AT_A_TIME_S = 0.002
"""Seconds of checking before other tasks may run on the event loop."""

_JOB_FIELDS = frozenset(each.name for each in fields(Submission))
ITEM_FIELDS = _JOB_FIELDS | {"custom_id"}
DEFAULTS = _JOB_FIELDS - {"user_id", "input_data", "metadata"}
"""Fields that a batch may set for all items. `metadata` is not among them: it belongs to the batch itself."""


class BatchInvalid(InvalidInput):
    """Items of a batch are invalid. `errors` has the errors of the items, at most `MOST_ERRORS`, each with its JSON
    pointer."""

    def __init__(self, errors: Sequence[RequestError]) -> None:
        first = errors[0]
        count = f"{len(errors)}{' or more' if len(errors) >= MOST_ERRORS else ''} errors; the first: "
        super().__init__(first.message if len(errors) == 1 else count + first.message, pointer=first.pointer)
        self.errors = tuple(errors)


@dataclass(frozen=True, slots=True)
class BatchSubmission:
    """A batch as it was submitted. Each item is a mapping with the fields of a job except `user_id`, and optionally a
    `custom_id`. `defaults` apply to items that do not set the field."""

    items: Sequence[Any]
    user_id: str = "anonymous"
    name: str | None = None
    metadata: Mapping[str, Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "user_id", user_text(self.user_id))


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """The transitions that store a valid batch. `submits` is in the order of the items."""

    create: CreateBatch
    submits: list[Submit]


async def check_batch(
    submission: BatchSubmission,
    config: Config,
    *,
    now: float,
    idempotency_key: str | None,
    endpoint_users: frozenset[str | None] = frozenset(),
    trace: str | None = None,
) -> CheckedBatch:
    user_id = check_text(submission.user_id, "user_id", MAX_USER_ID)
    name = None if submission.name is None else check_text(submission.name, "name", MAX_NAME)
    if idempotency_key is not None:
        check_text(idempotency_key, "Idempotency-Key", MAX_KEY)
    metadata_json = _metadata(submission.metadata)
    if unknown := sorted(set(submission.defaults) - DEFAULTS):
        known = ", ".join(sorted(DEFAULTS | {"items", "metadata", "name", "user_id"}))
        raise BatchInvalid(
            [
                InvalidInput(
                    f"{each[:100]!r} is not a field of a batch; the fields are: {known}", pointer=f"/{each[:100]}"
                )
                for each in unknown[:MOST_ERRORS]
            ]
        )
    most = config.server.max_bulk
    if not 1 <= len(submission.items) <= most:
        raise InvalidInput(f"items must hold 1 to {most} items, not {len(submission.items)}", pointer="/items")
    webhook, defaults = _webhook(submission.defaults, config)
    checks = SubmissionChecker(config, now=now, endpoint_users=endpoint_users, trace=trace)
    checking = _Items(replace(submission, defaults=defaults), checks, fingerprints=idempotency_key is not None)
    until = perf_counter() + AT_A_TIME_S
    for number, item in enumerate(submission.items):
        checking.take(number, item)
        if len(checking.errors) >= MOST_ERRORS:
            break
        if perf_counter() >= until:
            await asyncio.sleep(0)
            until = perf_counter() + AT_A_TIME_S
    if checking.errors:
        raise BatchInvalid(checking.errors)
    submits = checking.submits
    items = tuple(
        BatchItem(number, custom_id, submit.job.id)
        for number, (custom_id, submit) in enumerate(zip(checking.custom_ids, submits, strict=True))
    )
    batch = Batch(id_at(now), user_id, len(items), now, name, metadata_json, webhook)
    body_hash = None if idempotency_key is None else checking.hash_of(name, metadata_json, webhook)
    return CheckedBatch(CreateBatch(batch, items, idempotency_key, body_hash), submits)


class _Items:
    def __init__(self, submission: BatchSubmission, checks: SubmissionChecker, *, fingerprints: bool) -> None:
        self._user_id = submission.user_id
        self._defaults = submission.defaults
        self._checks = checks
        self._numbers: dict[str, int] = {}
        self._fingerprints: list[bytes] | None = [] if fingerprints else None
        self.custom_ids: list[str | None] = []
        self.submits: list[Submit] = []
        self.errors: list[RequestError] = []

    def take(self, number: int, item: Any) -> None:
        try:
            self._take(number, item)
        except RequestError as error:
            for each in error.errors if isinstance(error, BatchInvalid) else (error,):
                each.pointer = f"/items/{number}{each.pointer or ''}"
                each.__traceback__ = None  # a traceback would keep the item in memory
                self.errors.append(each)

    def _take(self, number: int, item: Any) -> None:
        if not isinstance(item, Mapping):
            raise InvalidInput("an item must be a JSON object", pointer="")
        values = {**self._defaults, **item}
        if not values.keys() <= ITEM_FIELDS or "feature_name" not in values:
            raise BatchInvalid(_wrong_fields(values))
        if user_text(values.setdefault("user_id", self._user_id)) != self._user_id:
            raise InvalidInput("an item belongs to the user of its batch; omit user_id", pointer="/user_id")
        custom_id = values.pop("custom_id", None)
        if custom_id is not None:
            check_text(custom_id, "custom_id", MAX_CUSTOM_ID)
            first = self._numbers.setdefault(custom_id, number)
            if first != number:
                raise InvalidInput(f"item {first} has the same custom_id", pointer="/custom_id")
        submission = Submission(**values)
        submit = self._checks.submit_of(submission)
        self.submits.append(submit)
        self.custom_ids.append(custom_id)
        if self._fingerprints is not None:
            # Keep the fingerprint rather than the submission, which takes far more memory.
            self._fingerprints.append(fingerprint(submission, submit.input_json, submit.metadata_json).encode())

    def hash_of(self, name: str | None, metadata_json: str | None, webhook: JobWebhook | None) -> str:
        """Hash the request, so that a different request with the same idempotency key can be detected."""
        head = (name, metadata_json, self.custom_ids)
        whole = hashlib.sha256(orjson.dumps(head if webhook is None else (*head, webhook)))
        for each in self._fingerprints or ():
            whole.update(each)
        return whole.hexdigest()


def _webhook(defaults: Mapping[str, Any], config: Config) -> tuple[JobWebhook | None, Mapping[str, Any]]:
    """The webhook of the batch, and the defaults of its items: an item sends the events of jobs to the same URL, if the
    batch names any."""
    url, events = defaults.get("webhook_url"), defaults.get("webhook_events")
    if url is None and events is None:
        return None, defaults
    webhook = check_webhook(url, events, config.webhooks, BATCH_EVENTS)
    rest = {name: value for name, value in defaults.items() if name not in ("webhook_url", "webhook_events")}
    if of_jobs := tuple(event for event in webhook.events if event in JOB_EVENTS):
        rest["webhook_url"] = replace(webhook, events=of_jobs)
    return webhook, rest


def _wrong_fields(values: Mapping[str, Any]) -> list[RequestError]:
    known = ", ".join(sorted(ITEM_FIELDS))
    errors: list[RequestError] = [
        InvalidInput(f"{str(name)[:100]!r} is not a field of an item; the fields are: {known}", pointer=_pointer(name))
        for name in islice((name for name in values if name not in ITEM_FIELDS), MOST_ERRORS)
    ]
    if "feature_name" not in values:
        errors.append(
            InvalidInput("feature_name is missing: set it for the item or for the batch", pointer="/feature_name")
        )
    return errors


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
