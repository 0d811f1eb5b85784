"""The head of a response is written together with its body, and waits for nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlead.gateway.connections import CoalescingTransport

HEAD, BODY = b"HTTP/1.1 202 Accepted\r\n\r\n", b"{}"


class Plain(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.sent.append(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def plain() -> Plain:
    return Plain()


@pytest.fixture
async def held(plain: Plain) -> CoalescingTransport:
    return CoalescingTransport(plain, asyncio.get_running_loop())


async def test_head_and_body_are_one_write(plain: Plain, held: CoalescingTransport) -> None:
    for _ in range(2):
        held.write(HEAD)
        held.write(BODY)
    await asyncio.sleep(0)
    assert plain.sent == [HEAD + BODY, HEAD + BODY]


async def test_chunks_after_the_first_are_written_at_once(plain: Plain, held: CoalescingTransport) -> None:
    for piece in (HEAD, b"event 1", b"event 2"):
        held.write(piece)
    assert plain.sent == [HEAD + b"event 1", b"event 2"]


async def test_a_head_whose_body_takes_longer_does_not_wait_for_it(plain: Plain, held: CoalescingTransport) -> None:
    held.write(HEAD)
    assert plain.sent == []
    await asyncio.sleep(0)
    assert plain.sent == [HEAD]
    held.write(BODY)
    assert plain.sent == [HEAD, BODY]


async def test_a_head_without_a_body_is_written_before_closing(plain: Plain, held: CoalescingTransport) -> None:
    held.write(HEAD)
    held.close()
    assert plain.sent == [HEAD]
    assert held.is_closing()


async def test_a_lost_connection_is_not_written_to(plain: Plain, held: CoalescingTransport) -> None:
    held.write(HEAD)
    plain.close()
    await asyncio.sleep(0)
    assert plain.sent == []
