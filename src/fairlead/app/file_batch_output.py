"""Writes the results of a file batch into its output file and its error file, in one pass over its parts."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import orjson

from fairlead.app.batches import Batches
from fairlead.app.file_batch_input import Breaks, LineTooLong, longest_line, read_lines
from fairlead.app.runtime import Runtime
from fairlead.artifacts.files import NewFile
from fairlead.artifacts.objects import ObjectMissing
from fairlead.artifacts.values import is_stored, load_value
from fairlead.domain.batch import ItemView
from fairlead.domain.file_batch import OUTPUT, FileBatch
from fairlead.domain.file_batch_lines import (
    EXPIRED,
    USAGE,
    BadLine,
    ResultLine,
    request_of,
    result_line,
    unsubmitted_line,
)
from fairlead.domain.files import File
from fairlead.domain.openai import FrontAnswer, json_object
from fairlead.errors import NotFound

PIECE = 64 * 1024
AHEAD = 4
"""The number of pieces that wait to be written."""


@dataclass
class Written:
    """The files that were written, which are not complete yet, and what is in them."""

    output: File | None = None
    errors: File | None = None
    completed: int = 0
    failed: int = 0
    expired: bool = False
    usage: dict[str, int] = field(default_factory=dict)

    @property
    def files(self) -> list[File]:
        return [file for file in (self.output, self.errors) if file is not None]

    def count(self, line: ResultLine) -> None:
        if line.ok:
            self.completed += 1
        else:
            self.failed += 1
            self.expired = self.expired or line.code == EXPIRED
        if line.usage is not None:
            self.usage = {name: self.usage.get(name, 0) + line.usage[name] for name in USAGE}


class _Sink:
    """A file that is written while its lines are made. It is begun with its first line."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue(AHEAD)
        self.task: asyncio.Task[File] | None = None
        self._lines: list[bytes] = []
        self._size = 0

    async def add(self, line: bytes) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._size >= PIECE:
            await self._flush()

    async def end(self) -> File | None:
        if self.task is None:
            return None
        await self._flush()
        await self.pieces.put(None)
        return await self.task

    async def _flush(self) -> None:
        piece, self._lines, self._size = b"".join(self._lines), [], 0
        await self.pieces.put(piece)

    async def read(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            yield piece


class OutputWriter:
    def __init__(self, runtime: Runtime, batches: Batches) -> None:
        self._runtime = runtime
        self._batches = batches

    async def write(self, batch: FileBatch, parts: list[str]) -> Written:
        """Write the lines of these parts, and of the requests that were never submitted. The caller completes the files
        with the commit that ends the batch."""
        written, output, errors = Written(), _Sink(), _Sink()
        try:
            async with asyncio.TaskGroup() as group:
                async with aclosing(self._lines(batch, parts)) as lines:
                    async for line in lines:
                        written.count(line)
                        sink = output if line.ok else errors
                        if sink.task is None:
                            name = "output" if line.ok else "errors"
                            sink.task = group.create_task(self._save(batch, f"{batch.id}_{name}.jsonl", sink))
                        await sink.add(line.text)
                written.output, written.errors = await output.end(), await errors.end()
        except ExceptionGroup as group_of_errors:
            raise group_of_errors.exceptions[0] from None
        return written

    async def _save(self, batch: FileBatch, name: str, sink: _Sink) -> File:
        files, keep = self._runtime.files, batch.keep_output_for
        expires_at = None if keep is None else self._runtime.clock.now() + keep
        new = NewFile(batch.user_id, name, "application/jsonl", OUTPUT, expires_at)
        return await files.write(await files.begin(new), sink.read())

    async def _lines(self, batch: FileBatch, parts: list[str]) -> AsyncGenerator[ResultLine, None]:
        files, breaks = self._runtime.files, Breaks()
        for part in parts:
            if await self._batches.owner_of(part) is None:
                continue  # removed by retention
            async for item in self._batches.results(part):
                await breaks.take()
                if is_stored(item.result):
                    # Raises Unavailable while the object store cannot be reached.
                    item = replace(item, result=await load_value(files, item.job_id, item.result))
                yield result_line(await self._with_images(item), batch)
        if batch.submitted >= batch.total:
            return
        file = await files.get_complete(batch.input_file_id)
        number = batch.submitted
        try:
            async for line in read_lines(files, file, longest_line(self._runtime.config), batch.offset):
                number += 1
                yield unsubmitted_line(batch, number, _custom_id(line.text, batch))
        except LineTooLong:
            return  # the limit was lowered since

    async def _with_images(self, item: ItemView) -> ItemView:
        """The item with its images as base64 in place of the names of their files. These end with the job, and the
        output is often read later."""
        answer = FrontAnswer.of_result(item.result)
        if answer is None or not answer.files:
            return item
        value = json_object(answer.body) or {}
        for image in value.get("data") or ():
            if isinstance(image, dict) and isinstance(named := image.get("url"), dict):
                del image["url"]
                image["b64_json"] = await self._base64(str(named.get("$file")))
        return replace(item, result=replace(answer, body=orjson.dumps(value), files=False).as_result())

    async def _base64(self, file_id: str) -> str | None:
        """The content of a file; None if it was deleted."""
        files = self._runtime.files
        try:
            return b64encode(await files.read_all(await files.get_complete(file_id))).decode()
        except (NotFound, ObjectMissing):
            return None


def _custom_id(text: bytes, batch: FileBatch) -> str | None:
    try:
        return request_of(text, batch.endpoint).custom_id
    except BadLine:
        return None
