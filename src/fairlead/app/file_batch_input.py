"""Reads the input file of a file batch line by line, and checks all of its lines without storing anything."""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter
from typing import NamedTuple

from fairlead.app.models import ModelCatalog
from fairlead.artifacts.files import Files
from fairlead.artifacts.objects import ObjectMissing
from fairlead.domain.config import Config
from fairlead.domain.events import utc
from fairlead.domain.file_batch import MOST_LINES, FileBatch, LineError
from fairlead.domain.file_batch_lines import BadLine, LineRequest, request_of
from fairlead.domain.files import File
from fairlead.domain.submission import Submission, SubmissionChecker
from fairlead.errors import NotFound, RequestError, UnknownModel

MOST_ERRORS = 100
AT_A_TIME_S = 0.003
SHARE = 0.3
"""How long lines are worked on before other tasks run, and the share of the time that is spent on lines. The requests
of a gateway in the same process must not wait for them."""


class Breaks:
    """Lets other tasks run while many lines are worked on."""

    def __init__(self) -> None:
        self._until = perf_counter() + AT_A_TIME_S

    async def take(self) -> None:
        """Take a break, if it is time for one."""
        late = perf_counter() - self._until
        if late >= 0:
            await asyncio.sleep((AT_A_TIME_S + late) * (1 / SHARE - 1))
            self._until = perf_counter() + AT_A_TIME_S


class Line(NamedTuple):
    """A line of the file that is not blank. `number` counts all lines, from 1. `end` is where the next one begins."""

    number: int
    text: bytes
    end: int


_NOT_BLANK = re.compile(rb"\S")


class LineTooLong(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


def longest_line(config: Config) -> int:
    """The longest line that is read, in bytes. White space and escapes make a line longer than what is stored of it."""
    return 2 * config.server.max_body + 65536


async def read_lines(
    files: Files, file: File, longest: int, offset: int = 0, number: int = 0
) -> AsyncGenerator[Line, None]:
    """The lines of a file from an offset on; `number` is the number of lines before it. Lets other tasks run from time
    to time. Raises LineTooLong."""
    if offset >= (file.size or 0):
        return
    breaks = Breaks()
    async with aclosing(_whole_lines(files.read(file, offset), longest)) as texts:
        async for text in texts:
            await breaks.take()
            if not text.endswith(b"\n"):
                raise LineTooLong(number + 1)
            begin = 0  # of the next line
            while found := _NOT_BLANK.search(text, begin):
                first = max(begin, text.rfind(b"\n", begin, found.start()) + 1)
                end = text.index(b"\n", found.start())
                number += text.count(b"\n", begin, first) + 1
                begin = end + 1
                await breaks.take()
                line = text[first:end]
                if number == 1 and not (line := line.removeprefix(codecs.BOM_UTF8)).strip():
                    continue
                if len(line) > longest:
                    raise LineTooLong(number)
                yield Line(number, line, min(offset + begin, file.size or 0))
            number += text.count(b"\n", begin)
            offset += len(text)


async def _whole_lines(pieces: AsyncGenerator[bytes, None], longest: int) -> AsyncGenerator[bytes, None]:
    """Joins the pieces of a file to texts that end at the end of a line. Ends with a text that does not, if a line has
    more bytes than `longest`."""
    held: list[bytes] = []
    async with aclosing(_with_end(pieces)) as with_end:
        async for piece in with_end:
            head, line_break, rest = piece.rpartition(b"\n")
            if line_break:
                yield b"".join((*held, head, line_break))
                held = [rest]
                continue
            held.append(rest)
            if sum(map(len, held)) > longest:
                yield b"".join(held)
                return


async def _with_end(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The pieces, and a line break after the last one."""
    async with aclosing(pieces):
        async for piece in pieces:
            yield piece
    yield b"\n"


def deadline_of(batch: FileBatch) -> datetime:
    return utc(batch.expires_at)


def submission_of(batch: FileBatch, request: LineRequest, service: str) -> Submission:
    return Submission(
        service,
        request.as_input(batch.endpoint),
        batch.user_id,
        priority=request.priority,
        deadline=deadline_of(batch),
    )


@dataclass
class Validation:
    """What was found in the input file. Without `errors`, the batch may run."""

    lines: int = 0
    model: str | None = None
    errors: list[LineError] = field(default_factory=list)


class Validator:
    """Checks every line as a submit of it would be checked. The lines themselves are not kept."""

    def __init__(self, config: Config, models: ModelCatalog, files: Files) -> None:
        self._config = config
        self._models = models
        self._files = files

    async def validate(self, batch: FileBatch, now: float) -> Validation:
        found = Validation()
        try:
            file = await self._files.get_complete(batch.input_file_id)
            longest = longest_line(self._config)
            async with aclosing(read_lines(self._files, file, longest)) as lines:
                await self._check(batch, lines, found, SubmissionChecker(self._config, now=now))
        except LineTooLong as error:
            message = f"the line is over {longest} bytes (server.max_body)"
            found.errors.append(LineError("line_too_long", message, error.number))
        except (NotFound, ObjectMissing):
            found.errors.append(LineError("file_not_found", "the input file cannot be read", None, "input_file_id"))
        if not found.lines and not found.errors:
            found.errors.append(LineError("empty_file", "the input file has no requests", None, "input_file_id"))
        return found

    async def _check(
        self, batch: FileBatch, lines: AsyncIterator[Line], found: Validation, checker: SubmissionChecker
    ) -> None:
        first_lines: dict[str, int] = {}
        service: str | None = None
        async for line in lines:
            found.lines += 1
            if found.lines > MOST_LINES:
                message = f"the file has more than {MOST_LINES} requests"
                found.errors.append(LineError("too_many_lines", message, line.number))
                return
            try:
                request = request_of(line.text, batch.endpoint)
                first = first_lines.setdefault(request.custom_id, line.number)
                if first != line.number:
                    raise BadLine("duplicate_custom_id", f"line {first} has the same custom_id", "custom_id")
                if service is None:
                    found.model = request.model
                    service = await self._models.service_for(request.model)
                if request.model != found.model:
                    message = f"all requests of a batch have one model; the first has {found.model!r}"
                    raise BadLine("mismatched_model", message, "body.model")
                checker.submit_of(submission_of(batch, request, service))
            except BadLine as error:
                found.errors.append(LineError(error.code, error.message, line.number, error.param))
            except UnknownModel as error:
                found.errors.append(LineError(error.code, error.message, line.number, "body.model"))
                return  # every other line would have the same error
            except RequestError as error:
                found.errors.append(LineError(error.code, error.message, line.number, "body"))
            if len(found.errors) >= MOST_ERRORS:
                return
