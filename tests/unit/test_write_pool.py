"""The connections for commits: few, reused, and never one with a statement or transaction left open."""

from __future__ import annotations

import asyncio

import pytest

from fairlead.store.postgres.connect import WritePool


class Link:
    """A connection that can be put into any state."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.in_transaction = False
        self.closed = False

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self, *, timeout: float) -> None:
        self.closed = True


class Maker:
    def __init__(self) -> None:
        self.made: list[Link] = []
        self.refuses = False

    async def __call__(self) -> Link:
        await asyncio.sleep(0)
        if self.refuses:
            raise ConnectionRefusedError
        self.made.append(Link(len(self.made)))
        return self.made[-1]


async def used(writers: WritePool[Link]) -> int:
    async with writers.connection() as link:
        return link.number


async def test_a_connection_is_reused() -> None:
    writers = WritePool(Maker(), 2)
    assert [await used(writers), await used(writers)] == [0, 0]


async def test_the_pool_is_bounded_and_the_next_caller_waits() -> None:
    maker = Maker()
    writers = WritePool(maker, 2)
    async with writers.connection(), writers.connection() as second:
        third = asyncio.create_task(used(writers))
        while not maker.made[1:]:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not third.done()
    assert await third in (0, second.number)
    assert len(maker.made) == 2


async def test_a_connection_that_the_server_closed_is_not_reused() -> None:
    maker = Maker()
    writers = WritePool(maker, 2)
    await used(writers)
    maker.made[0].closed = True
    assert await used(writers) == 1


async def test_a_connection_left_in_a_transaction_is_not_reused() -> None:
    writers = WritePool(Maker(), 2)
    async with writers.connection() as link:
        link.in_transaction = True
    assert link.closed
    assert await used(writers) == 1


async def test_a_connection_whose_statement_was_refused_is_reused() -> None:
    writers = WritePool(Maker(), 2)
    with pytest.raises(ValueError):
        async with writers.connection():
            raise ValueError
    assert await used(writers) == 0


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError])
async def test_a_connection_with_a_statement_in_progress_is_not_reused(error: type[BaseException]) -> None:
    writers = WritePool(Maker(), 2)
    with pytest.raises(error):
        async with writers.connection() as link:
            raise error
    assert link.closed
    assert await used(writers) == 1


async def test_a_failed_connect_frees_its_place_in_the_pool() -> None:
    maker = Maker()
    writers = WritePool(maker, 1)
    maker.refuses = True
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await used(writers)
    maker.refuses = False
    assert await used(writers) == 0


async def test_an_idle_connection_is_closed() -> None:
    maker = Maker()
    writers = WritePool(maker, 2, idle_lifetime=0.01)
    async with writers.connection(), writers.connection():
        pass
    async with asyncio.timeout(5):
        while not all(link.closed for link in maker.made):
            await asyncio.sleep(0.001)
    assert await used(writers) == 2


async def test_connections_in_use_are_closed_after_use() -> None:
    maker = Maker()
    writers = WritePool(maker, 2)
    async with writers.connection() as link:
        await used(writers)
        await writers.close()
        assert [each.closed for each in maker.made] == [False, True]
    assert link.closed
