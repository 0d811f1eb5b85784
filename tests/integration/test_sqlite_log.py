"""SQLite's write-ahead log is copied into the database beside the commits (`LogCopier`)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from pathlib import Path

import pytest

from fairlead.store.sqlite import SqliteStore, connect, writer_thread
from tests.disks import fill, small_disk
from tests.integration.test_sqlite_store import job, opened

PAGE = 4096


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is copied after every commit."""
    monkeypatch.setattr(writer_thread, "COPY_AFTER", 1)


async def until_copied(store: SqliteStore) -> None:
    assert store._log_copier is not None
    await store._log_copier.pause()


async def test_the_log_is_copied_beside_the_commits_and_starts_over(tmp_path: Path) -> None:
    """Without the copies, the log would reach the limit."""
    path = tmp_path / "x.db"
    async with opened(path) as store:
        for n in range(writer_thread.COPY_LIMIT * 2 // 100):
            await store.commit([job(f"{n}-{m}", f'"{"x" * PAGE}"') for m in range(100)])
            await until_copied(store)
        assert connect.size_of_log(str(path)) < writer_thread.COPY_LIMIT * PAGE * 3 / 4
        assert path.stat().st_size > writer_thread.COPY_LIMIT * PAGE


async def test_a_commit_copies_a_log_that_was_not_copied_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "COPY_LIMIT", 100)
    monkeypatch.setattr(writer_thread, "COPY_AFTER", 10**9)
    path = tmp_path / "x.db"
    async with opened(path) as store:
        for n in range(60):
            await store.commit([job(f"{n}", f'"{"x" * 10 * PAGE}"')])
        assert connect.size_of_log(str(path)) < 200 * PAGE


@pytest.mark.usefixtures("eager")
async def test_closing_the_store_while_the_log_is_copied_leaves_no_thread_and_no_log(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    store = SqliteStore(str(tmp_path / "x.db"))
    await store.open()
    assert "fairlead-checkpoint" in {thread.name for thread in threading.enumerate()}
    await store.commit([job(f"{n}", f'"{"x" * PAGE}"') for n in range(500)])
    await store.close()
    assert {thread for thread in threading.enumerate() if thread.name.startswith("fairlead")} <= before
    assert not connect.size_of_log(str(tmp_path / "x.db"))


async def test_a_disk_too_full_for_the_copy_is_logged_once_and_loses_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(4 << 20) as folder:
        path = folder / "x.db"
        async with opened(path) as store:
            await store.commit([job("large", f'"{"x" * 1_000_000}"')])
            monkeypatch.setattr(writer_thread, "COPY_AFTER", 1)
            filler = folder / "filler"
            fill(filler)
            caplog.set_level(logging.WARNING, "fairlead.store")
            assert store._log_copier is not None
            for _ in range(2):
                store._log_copier.wrote(0)
                await until_copied(store)
            assert caplog.text.count("the write-ahead log cannot be copied into the database") == 1
            assert await store.get("large") is not None
            filler.unlink()
            await store.commit([job("small")])
            await until_copied(store)
            assert path.stat().st_size > 1_000_000
        assert not connect.size_of_log(str(path))


@pytest.mark.usefixtures("eager")
async def test_the_log_is_emptied_after_it_was_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite refuses to empty a log that is being copied."""
    path, order, may_end = tmp_path / "x.db", [], threading.Event()
    store = SqliteStore(str(path), overwrites=True)
    await store.open()
    assert store._log_copier is not None
    copy, empty_log = store._log_copier._copy, connect.empty_log

    def slow() -> None:
        assert may_end.wait(60)
        copy()
        order.append("copied")

    def emptied(connection: sqlite3.Connection) -> bool:
        order.append("emptied")
        return empty_log(connection)

    monkeypatch.setattr(store._log_copier, "_copy", slow)
    monkeypatch.setattr(connect, "empty_log", emptied)
    await store.commit([job("x")])
    emptying = asyncio.create_task(store.ping())
    await asyncio.wait([emptying], timeout=0.3)
    may_end.set()
    await emptying
    assert order == ["copied", "emptied"]
    assert not connect.size_of_log(str(path))
    await store.close()
