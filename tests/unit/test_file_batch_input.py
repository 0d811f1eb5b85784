"""The lines of the input file of a batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fairlead.app import file_batch_input
from fairlead.app.file_batch_input import Breaks, Line, LineTooLong, read_lines
from fairlead.domain.files import File

PIECE = 64 * 1024


class Content:
    """Files with this content, read in pieces."""

    def __init__(self, content: bytes, piece: int = PIECE) -> None:
        self._content = content
        self._piece = piece
        self.file = File("file-1", "ann", "a1", "in.jsonl", "application/jsonl", "batch", 0.0, size=len(content))

    async def read(self, file: File, start: int = 0) -> AsyncGenerator[bytes, None]:
        for begin in range(start, len(self._content), self._piece):
            yield self._content[begin : begin + self._piece]

    async def lines(self, longest: int = 1000, offset: int = 0) -> list[Line]:
        files: Any = self
        return [line async for line in read_lines(files, self.file, longest, offset)]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, PIECE])
async def test_lines_have_their_number_and_the_place_of_the_next_one(piece: int) -> None:
    content = b"\xef\xbb\xbf{1}\r\n\n \t\r\n {2}\n{3}"
    found = await Content(content, piece).lines()
    assert found == [Line(1, b"{1}\r", 8), Line(4, b" {2}", 18), Line(5, b"{3}", len(content))]
    assert [line.text for line in await Content(content, piece).lines(offset=8)] == [b" {2}", b"{3}"]


@pytest.mark.parametrize("piece", [3, PIECE])
async def test_a_line_that_is_too_long_is_named(piece: int) -> None:
    assert [line.text for line in await Content(b"\n1234\n1\n", piece).lines(longest=4)] == [b"1234", b"1"]
    with pytest.raises(LineTooLong) as error:
        await Content(b"\n\n12345", piece).lines(longest=4)
    assert error.value.number == 3


@pytest.mark.parametrize("blank", [b"\n", b" \r\n"])
async def test_blank_lines_cost_no_work_of_their_own(blank: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have 200 million of them."""
    steps = 0

    async def count(breaks: Breaks) -> None:
        nonlocal steps
        steps += 1

    monkeypatch.setattr(file_batch_input.Breaks, "take", count)
    blanks = blank * 500_000
    (line,) = await Content(blanks + b"{}" + blanks).lines()
    assert (line.number, line.text) == (500_001, b"{}" + blank.rstrip(b"\n"))
    assert steps <= 2 * len(blanks) // PIECE + 10
