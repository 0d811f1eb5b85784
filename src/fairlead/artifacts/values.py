"""Inputs and results that are too large for the database. Their JSON is a file; the row holds `{"$stored": ...}`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import orjson

from fairlead.artifacts.files import Files, NewFile
from fairlead.artifacts.objects import ObjectMissing, ObjectsUnavailable
from fairlead.domain import files
from fairlead.domain.files import STORED, File
from fairlead.domain.job import JobRecord
from fairlead.domain.transitions import Submit
from fairlead.errors import InvalidInput

PIECE = 1024 * 1024


async def save_value(files_: Files, user_id: str, job_id: str, value_json: str, keep_for: float = 0.0) -> File:
    """Store the JSON text of an input, a result or a chunk of output as a file of this job."""
    content = memoryview(value_json.encode())

    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(content), PIECE):
            yield bytes(content[begin : begin + PIECE])

    new = NewFile(user_id, "value.json", "application/json", files.VALUE, job_id=job_id, keep_for=keep_for)
    return await files_.save(new, pieces())


async def load_json(files_: Files, job_id: str, value_json: str, most: int | None = None) -> str:
    """The JSON text of a value that may be in the object store. A text that only looks like a stored value is returned
    as it is, and so is one of more than `most` bytes."""
    file_id = files.stored_id(value_json)
    file = None if file_id is None else await _value_file(files_, job_id, file_id)
    if file is None:
        return value_json
    if most is not None and (file.size or 0) > most:
        return value_json
    return (await files_.read_all(file)).decode()


async def load_stored(files_: Files, job_id: str, file_id: str) -> str | None:
    """The JSON text that `save_value` stored for this job; None if it was removed."""
    file = await _value_file(files_, job_id, file_id)
    try:
        return None if file is None else (await files_.read_all(file)).decode()
    except ObjectMissing:
        return None


async def _value_file(files_: Files, job_id: str, file_id: str) -> File | None:
    file = (await files_.get_many([file_id])).get(file_id)
    is_value = file is not None and file.job_id == job_id and file.purpose == files.VALUE and file.ready
    return file if is_value else None


def is_stored(value: Any) -> bool:
    """Whether a value looks like one that is in the object store."""
    return isinstance(value, dict) and "$stored" in value


async def load_value(files_: Files, job_id: str, value: Any) -> Any:
    """Like `load_json`, for a decoded value."""
    return orjson.loads(await load_json(files_, job_id, orjson.dumps(value).decode()))


async def load_record(files_: Files, record: JobRecord) -> JobRecord:
    """A job with its input and results from the object store, as long as they are not larger than
    `artifacts.max_inline` together. The others stay references, and so do all while the object store cannot be
    reached."""
    if not record.input_json.startswith(STORED) and not any(r.data_json.startswith(STORED) for r in record.results):
        return record
    try:
        return await _loaded(files_, record)
    except ObjectsUnavailable:
        return record  # its status is worth reading


async def _loaded(files_: Files, record: JobRecord) -> JobRecord:
    left = files_.config.max_inline
    results = []
    # The last result is the one that readers want most.
    for result in sorted(record.results, key=lambda result: (result.step, result.round), reverse=True):
        data_json = await load_json(files_, record.job.id, result.data_json, left)
        left -= len(data_json) if data_json is not result.data_json else 0
        results.append(replace(result, data_json=data_json))
    input_json = await load_json(files_, record.job.id, record.input_json, left)
    return replace(record, input_json=input_json, results=tuple(reversed(results)))


async def keep_inputs(files_: Files, submits: list[Submit]) -> list[Submit]:
    """Check the files that inputs name, and move large inputs to the object store. Raises InvalidInput if a file is not
    a complete file of the job's user; of several jobs, the error's details have the `index`."""
    threshold = files_.config.threshold
    for index, submit in enumerate(submits):
        if len(submit.input_json) > threshold or files.MARK in submit.input_json:
            try:
                submits[index] = await _keep_input(files_, submit)
            except InvalidInput as error:
                if len(submits) > 1:
                    error.details["index"] = index
                raise
    return submits


async def _keep_input(files_: Files, submit: Submit) -> Submit:
    job, names = submit.job, files.named_in(submit.input_json)
    await check_named(files_, names, job.user_id)
    if len(submit.input_json) <= files_.config.threshold:
        return replace(submit, files=names)
    stored = await save_value(files_, job.user_id, job.id, submit.input_json)
    return replace(submit, input_json=stored.stored_json(), files=(*names, stored.id))


async def check_named(files_: Files, names: Sequence[str], user_id: str) -> None:
    found = await files_.get_many(names) if names else {}
    for name in names:
        file = found.get(name)
        if file is None or file.user_id != user_id:
            raise InvalidInput(f"there is no file {name}", pointer="/input_data", details={"file": name})
        if not file.ready:
            raise InvalidInput(f"the file {name} is not uploaded completely", pointer="/input_data")
