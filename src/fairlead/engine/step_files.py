"""The files of running steps: large values are loaded before a call and stored after it, and handlers save and open
files. While the object store cannot be reached, all of these wait."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TypeVar

import orjson

from fairlead.artifacts.files import Files, NewFile
from fairlead.artifacts.objects import PIECE, ObjectsUnavailable
from fairlead.artifacts.values import load_json, save_value
from fairlead.domain import files
from fairlead.domain.files import STORED, File
from fairlead.domain.retry import STORE_UNAVAILABLE, Failure
from fairlead.errors import InvalidInput, NotFound, Permanent, TooLarge, Unavailable
from fairlead.executors.call_outcome import bad, too_large
from fairlead.executors.port import Call, Reference, Source, Success

if TYPE_CHECKING:
    from fairlead.engine.step_run import StepRun

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
IN_MEMORY = 4 * 1024 * 1024
"""The size up to which an opened file is kept in memory instead of in a temporary file, in bytes."""
LOADED_WITHIN = 30.0


def unavailable(message: str) -> Failure:
    """A failure that delays the step and costs it no attempt."""
    return Failure(STORE_UNAVAILABLE, message, retryable=True)


def is_stored(call: Call) -> bool:
    """Whether the input, or the result of an earlier step, is in the object store."""
    return STORED in call.params_json or STORED in call.context_json


class StepFiles:
    """What a worker does with the files of a step before and after its call."""

    def __init__(self, files_: Files) -> None:
        self._files = files_
        self._threshold = files_.config.threshold

    async def load(self, call: Call) -> Failure | None:
        """Replace values that are in the object store by the values themselves. Returns a failure if that is not
        possible now: the step goes back to the queue, and its slot is free for others."""
        try:
            async with asyncio.timeout(LOADED_WITHIN):
                call.params_json = await load_json(self._files, call.job_id, call.params_json)
                if STORED in call.context_json:
                    call.context_json = await self._context(call)
        except (Unavailable, TimeoutError) as error:
            return unavailable(f"the input cannot be read: {error or 'the object store does not answer'}")
        return None

    async def _context(self, call: Call) -> str:
        context = orjson.loads(call.context_json)
        for entry in context.values():
            data_json = orjson.dumps(entry["data"]).decode()
            if data_json.startswith(STORED):
                entry["data"] = orjson.Fragment(await load_json(self._files, call.job_id, data_json))
        return orjson.dumps(context).decode()

    def concern(self, run: StepRun, call: Call) -> bool:
        """Whether the outcome of a call has to do with files."""
        outcome = run.outcome
        if not isinstance(outcome, Success):
            return False
        data = outcome.data_json
        return len(data) > self._threshold or call.saved is not None or files.MARK in data

    async def keep(self, run: StepRun, call: Call) -> None:
        """Store a large result, and note the files that the step must keep. Retries while the database or the object
        store is not available: the call has done its work, which must not be lost."""
        outcome, pause = run.outcome, FIRST_PAUSE
        assert isinstance(outcome, Success)
        while True:
            try:
                run.outcome = await self._kept(run, call, outcome)
                return
            except Unavailable:
                if run.stopped:
                    run.outcome = None
                    return
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    async def _kept(self, run: StepRun, call: Call, outcome: Success) -> Success | Failure:
        data = outcome.data_json
        try:
            named = files.named_in(data)
        except InvalidInput as error:
            return bad(f"the result names a file that cannot be: {error}")
        found = await self._files.get_many(named) if named else {}
        for file_id in named:
            file = found.get(file_id)
            if file is None or not file.ready or file.user_id != call.user_id:
                return bad(f"the result names the file {file_id}, which does not exist")
        kept = [*(call.saved or ()), *named]
        if len(data) > self._threshold:
            size, most = len(data.encode()), self._files.config.max_file
            if size > most:
                return too_large(size, most, "artifacts.max_file")
            stored = await save_value(self._files, call.user_id, call.job_id, data)
            kept.append(stored.id)
            outcome = replace(outcome, data_json=stored.stored_json())
        run.files = tuple(dict.fromkeys(kept))
        return outcome


class LoopFiles:
    """Saves and opens files for handlers, which run on the event loop or in threads."""

    def __init__(self, files_: Files, loop: asyncio.AbstractEventLoop) -> None:
        self._files = files_
        self._loop = loop

    def save(self, call: Call, name: str, source: Source, content_type: str | None) -> Any:
        return self._run(self.saved(call, name, source, content_type))

    def open(self, call: Call, reference: Reference) -> Any:
        return self._run(self.opened(call, reference))

    def read(self, call: Call, reference: Reference) -> Any:
        return self._run(self._read(call, reference))

    async def urls(self, call: Call, value_json: str) -> str:
        value = orjson.loads(value_json)
        names = tuple(dict.fromkeys(files.references_in(value)))
        found = await self._files.get_many(names)
        urls = {}
        for name in names:
            file = found.get(name)
            if file is not None and file.ready and file.user_id == call.user_id:
                urls[name] = await self._files.service_url(file, call.timeout)
        return orjson.dumps(_with_urls(value, urls)).decode() if any(urls.values()) else value_json

    def _run(self, work: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
        """The awaitable itself on our event loop, an awaitable for another event loop, or the result in a thread."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        if running is self._loop:
            return work
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def saved(self, call: Call, name: str, source: Source, content_type: str | None) -> dict[str, Any]:
        new = NewFile(call.user_id, name, content_type, files.RESULT, job_id=call.job_id, keep_for=call.timeout)
        with await _rereadable(source, self._files.config.max_file) as file:
            begin = file.tell()

            async def save() -> File:
                file.seek(begin)
                return await self._files.save(new, _chunks(file))

            saved = await _patiently(call, save)
        call.saved = [*(call.saved or ()), saved.id]
        return saved.reference()

    async def opened(self, call: Call, reference: Reference) -> IO[bytes]:
        async def load() -> IO[bytes]:
            found = await self._files.get_complete(files.id_in(reference), call.user_id)
            # Handed to the handler, who closes it.
            copy = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
            try:
                async with aclosing(self._files.read(found)) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(copy.write, piece)
            except BaseException:
                copy.close()
                raise
            copy.seek(0)
            return copy

        return await _patiently(call, load)

    async def _read(self, call: Call, reference: Reference) -> bytes:
        with await self.opened(call, reference) as file:
            return await asyncio.to_thread(file.read)


def _with_urls(value: Any, urls: Mapping[str, str | None]) -> Any:
    if isinstance(value, dict):
        filled = {key: _with_urls(each, urls) for key, each in value.items()}
        url = urls.get(str(value.get("$file")))
        return filled if url is None else {**filled, "url": url}
    return [_with_urls(each, urls) for each in value] if isinstance(value, list) else value


async def _patiently(call: Call, work: Callable[[], Awaitable[T]]) -> T:
    """Repeat `work` while the object store cannot be reached, until the call is stopped."""
    pause = FIRST_PAUSE
    while True:
        try:
            done = await work()
            call.stalled = False
            return done
        except ObjectsUnavailable:
            call.stalled = True
        except (NotFound, TooLarge, InvalidInput) as error:
            raise Permanent(str(error)) from None
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 2)


async def _rereadable(source: Source, most: int) -> IO[bytes]:
    """A binary file with the bytes of `source`, which can be read again from its position. At most `most` bytes of a
    stream are read."""
    if isinstance(source, bytes | bytearray | memoryview):
        copy: Any = tempfile.SpooledTemporaryFile(max(IN_MEMORY, len(source) + 1))  # noqa: SIM115
        copy.write(source)
        copy.seek(0)
        return copy  # type: ignore[no-any-return]
    if isinstance(source, os.PathLike):
        return await asyncio.to_thread(_open, source)
    if isinstance(source, str):
        raise TypeError("save() takes bytes, a pathlib.Path or a binary file, not text: encode it, or use Path(...)")
    copy = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
    try:
        async for chunk in _pieces_of(source):
            await asyncio.to_thread(copy.write, chunk)
            if copy.tell() > most:
                raise Permanent(f"the file is too large: artifacts.max_file allows {most} bytes")
    except BaseException:
        copy.close()
        raise
    copy.seek(0)
    return copy  # type: ignore[no-any-return]


def _open(path: os.PathLike[str]) -> BinaryIO:
    return open(path, "rb")


async def _pieces_of(source: BinaryIO | Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(source, AsyncIterable):
        async for chunk in source:
            yield chunk
        return
    read: Any = getattr(source, "read", None)
    iterator = iter(lambda: read(PIECE), b"") if read is not None else iter(source)
    while (piece := await asyncio.to_thread(next, iterator, None)) is not None:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise TypeError(f"a file is saved from bytes, not from {type(piece).__name__}")
        yield bytes(piece)


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, PIECE):
        yield piece
