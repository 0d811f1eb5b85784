"""SQLite's write-ahead log is copied into the database after commits, on the connection that writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fairlead.store.sqlite import SqliteStore, connect
from fairlead.store.sqlite import store as sqlite_store
from tests.disks import fill, small_disk
from tests.integration.test_sqlite_store import job, opened

PAGE = 4096


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is copied after every commit."""
    monkeypatch.setattr(sqlite_store, "COPY_AFTER", 1)


async def until_copied(store: SqliteStore) -> None:
    """The thread that writes does one thing after the other."""
    await store._in_writer(lambda: None)


async def test_the_log_is_copied_after_commits_and_starts_over(tmp_path: Path) -> None:
    """Without the copies, the log would reach the limit."""
    path = tmp_path / "x.db"
    async with opened(path) as store:
        for n in range(connect.COPY_LIMIT * 2 // 100):
            await store.commit([job(f"{n}-{m}", f'"{"x" * PAGE}"') for m in range(100)])
        await until_copied(store)
        assert connect.size_of_log(str(path)) < connect.COPY_LIMIT * PAGE * 3 / 4
        assert path.stat().st_size > connect.COPY_LIMIT * PAGE


@pytest.mark.usefixtures("eager")
async def test_the_callers_of_a_commit_do_not_wait_until_the_log_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_copy, copied, copy_log = threading.Event(), threading.Event(), connect.copy_log
    async with opened(tmp_path / "x.db") as store:
        writer = store._writer

        def slow(connection: object) -> None:
            assert connection is writer  # no other connection may copy the log
            assert may_copy.wait(60)
            copy_log(connection)
            copied.set()

        monkeypatch.setattr(connect, "copy_log", slow)
        await store.commit([job("x")])
        assert not copied.is_set()
        may_copy.set()
        await until_copied(store)
        assert copied.is_set()


async def test_a_commit_copies_a_log_that_was_not_copied_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "COPY_LIMIT", 100)
    monkeypatch.setattr(sqlite_store, "COPY_AFTER", 10**9)
    path = tmp_path / "x.db"
    async with opened(path) as store:
        for n in range(60):
            await store.commit([job(f"{n}", f'"{"x" * 10 * PAGE}"')])
        assert connect.size_of_log(str(path)) < 200 * PAGE


@pytest.mark.usefixtures("eager")
async def test_closing_the_store_while_the_log_is_copied_leaves_no_log(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "x.db"))
    await store.open()
    await store.commit([job(f"{n}", f'"{"x" * PAGE}"') for n in range(500)])
    await store.close()
    assert not connect.size_of_log(str(tmp_path / "x.db"))


async def test_a_disk_too_full_for_the_copy_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(4 << 20) as folder:
        path = folder / "x.db"
        async with opened(path) as store:
            await store.commit([job("large", f'"{"x" * 1_000_000}"')])
            filler = folder / "filler"
            fill(filler)
            await store._in_writer(store._copy_log)
            assert await store.get("large") is not None
            filler.unlink()
            monkeypatch.setattr(sqlite_store, "COPY_AFTER", 1)
            await store.commit([job("small")])
            await until_copied(store)
            assert path.stat().st_size > 1_000_000
        assert not connect.size_of_log(str(path))
