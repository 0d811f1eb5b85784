"""SQLite in production: foreign files, other processes, a full disk, and the cost of a commit."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fairlead.backends import store_of
from fairlead.domain.job import Job
from fairlead.domain.transitions import Submit, submit
from fairlead.errors import AlreadyDispatching, StoreError, Unavailable
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Accepted, Busy, EndHolds, JobFilter, RaiseEpoch, Relayed
from fairlead.store.sql_files import load
from fairlead.store.sqlite import SqliteStore, connect, gil

ALL = JobFilter()


def job(job_id: str, input_json: str = "{}") -> Submit:
    return submit(Job(job_id, "f", "ann", ("draw",)), input_json, now=time.time(), waits={})


@asynccontextmanager
async def opened(path: Path, **options: str) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), **options)  # type: ignore[arg-type]
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Every file in the folder keeps its bytes, and there is no new one."""
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    yield
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


# ---------------------------------------------------------------- opening


async def test_a_new_file_is_created_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    async with opened(path) as store:
        await store.commit([job("j1")])
    assert not (tmp_path / "new.db-wal").exists()
    async with opened(path) as store:
        assert await store.count(ALL) == 1
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert raw.execute("PRAGMA user_version").fetchone() == (connect.known_version(),)


async def test_an_empty_file_counts_as_new(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    async with opened(tmp_path / "empty.db") as store:
        assert await store.count(ALL) == 0


async def test_commits_are_synced_to_the_disk_by_default(tmp_path: Path) -> None:
    async with opened(tmp_path / "x.db") as store:
        assert store._writer is not None
        assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)


def make_text(path: Path) -> None:
    path.write_text("this is no database, " * 20)


def make_foreign(path: Path, journal_mode: str = "delete") -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(f"PRAGMA journal_mode={journal_mode}; CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")


def make_foreign_in_wal(path: Path) -> None:
    make_foreign(path, "wal")


def make_foreign_with_id(path: Path) -> None:
    make_foreign(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA application_id = 77")


def make_ours(path: Path) -> None:
    connect.prepare(str(path))


def make_newer(path: Path) -> None:
    make_ours(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 999")


def make_truncated(path: Path) -> None:
    make_ours(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def make_garbled(path: Path) -> None:
    make_ours(path)
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\xa5" * 3996
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_text, "not a SQLite database"),
        (make_foreign, "another application"),
        (make_foreign_in_wal, "another application"),
        (make_foreign_with_id, "another application"),
        (make_newer, "version 999.*newer"),
        (make_truncated, "corrupt"),
        (make_garbled, "corrupt"),
    ],
)
async def test_an_unusable_file_is_refused_untouched(tmp_path: Path, make: object, why: str) -> None:
    path = tmp_path / "x.db"
    make(path)  # type: ignore[operator]
    with untouched(tmp_path), pytest.raises(StoreError, match=why):
        await SqliteStore(str(path)).open()


async def test_a_failed_open_leaves_no_thread(tmp_path: Path) -> None:
    make_text(tmp_path / "x.db")
    before = threading.active_count()
    with pytest.raises(StoreError):
        await SqliteStore(str(tmp_path / "x.db")).open()
    assert threading.active_count() == before


async def test_memory_is_refused_because_it_would_lose_jobs() -> None:
    with pytest.raises(StoreError, match="memory"):
        await SqliteStore(":memory:").open()


async def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(StoreError, match="too old"):
        await SqliteStore(str(tmp_path / "x.db")).open()


async def test_a_path_with_special_characters_works(tmp_path: Path) -> None:
    async with opened(tmp_path / "my jobs? 100% #1.db") as store:
        await store.commit([job("j1")])
        assert await store.count(ALL) == 1


OPEN_AND_SUBMIT = """
import asyncio, sys, time
from fairlead.domain.job import Job
from fairlead.domain.transitions import submit
from fairlead.store.sqlite import SqliteStore
async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    store = SqliteStore(sys.argv[1])
    await store.open()
    for n in range(5):
        job = Job(f"{sys.argv[2]}-{n}", "f", "ann", ("draw",))
        await store.commit([submit(job, "{}", now=time.time(), waits={})])
    await store.close()
asyncio.run(main())
"""


async def test_processes_that_open_a_new_database_at_once_migrate_it_once(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    children = [python(OPEN_AND_SUBMIT, str(path), str(n)) for n in range(4)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        _, errors = await asyncio.to_thread(child.communicate)
        assert child.returncode == 0, errors
    async with opened(path) as store:
        assert await store.count(ALL) == 20


async def test_submits_of_another_process_are_found_in_the_outbox_at_once(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    async with opened(path) as store:
        store.relays()
        await store.commit([job("mine")])
        child = python(OPEN_AND_SUBMIT, str(path), "theirs")
        _, errors = await asyncio.to_thread(child.communicate, "go\n")
        assert child.returncode == 0, errors
        changes = await store.outbox(older_than=0.0, limit=10)
        assert [change.job_id for change in changes] == [f"theirs-{n}" for n in range(5)]
        assert all(change.job is not None for change in changes)


LOCK_AND_WAIT = """
import asyncio, sys
from fairlead.store.sqlite import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await store.lock_dispatch()
    print("locked", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""


async def test_the_dispatching_process_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    child = python(LOCK_AND_WAIT, str(path))
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == "locked\n"
    async with opened(path) as store:
        with pytest.raises(AlreadyDispatching, match=f"process {child.pid} .*DATABASE_URL and REDIS_URL"):
            await store.lock_dispatch()
        child.kill()
        await asyncio.to_thread(child.communicate)
        await store.lock_dispatch()
        await store.lock_dispatch()


# ---------------------------------------------------------------- unusable paths


async def test_an_unusable_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for place, why in (
        ("folder", "is a directory"),
        ("nowhere/x.db", "does not exist; create it first"),
        ("file/x.db", "does not exist; create it first"),
    ):
        with pytest.raises(StoreError, match=why):
            await SqliteStore(str(tmp_path / place)).open()


async def test_a_path_without_write_permission_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, which has every permission.
    monkeypatch.setattr(connect.os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(StoreError, match="may not write to the directory"):
        await SqliteStore(str(tmp_path / "x.db")).open()
    (tmp_path / "x.db").touch()
    monkeypatch.setattr(connect.os, "access", lambda path, mode: Path(path) == tmp_path)
    with pytest.raises(StoreError, match="may not read and write it"):
        await SqliteStore(str(tmp_path / "x.db")).open()


async def test_a_lock_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.db.lock").mkdir()
    async with opened(tmp_path / "x.db") as store:
        with pytest.raises(StoreError, match=r"x\.db\.lock cannot be opened"):
            await store.lock_dispatch()


# ---------------------------------------------------------------- a full disk, a locked file


async def test_a_full_disk_is_unavailable_loses_nothing_and_recovers(tmp_path: Path) -> None:
    async with opened(tmp_path / "x.db") as store:
        await store.commit([job("before")])
        assert store._writer is not None
        (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
        store._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        large = [job(f"large-{n}", f'"{"x" * 10_000}"') for n in range(20)]
        with pytest.raises(Unavailable, match="disk is full"):
            await store.commit(large)
        assert await store.count(ALL) == 1
        assert await store.get("large-0") is None
        store._writer.execute("PRAGMA max_page_count = 1000000")
        outcomes = (await store.commit(large)).outcomes
        assert all(isinstance(outcome, Accepted) for outcome in outcomes)
        assert await store.count(ALL) == 21


async def test_the_group_commit_reports_a_full_disk_and_later_writes_succeed(tmp_path: Path) -> None:
    async with opened(tmp_path / "x.db") as store:
        group_commit = GroupCommit(store)
        group_commit.start()
        assert store._writer is not None
        (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
        store._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(Unavailable, match="disk is full"):
            await group_commit.write(job("large", f'"{"x" * 100_000}"'))
        store._writer.execute("PRAGMA max_page_count = 1000000")
        assert isinstance(await group_commit.write(job("large", f'"{"x" * 100_000}"')), Accepted)
        await group_commit.close()


async def test_a_database_locked_by_another_is_busy_and_the_group_commit_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT", 0.01)
    path = tmp_path / "x.db"
    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Busy):
                await store.commit([job("j1")])
            group_commit = GroupCommit(store, retry_delays=[0.01] * 500)
            group_commit.start()
            tried = asyncio.Event()
            apply = store._apply

            def apply_and_tell(parameters: list[object]) -> str:
                try:
                    return apply(parameters)
                except Busy:
                    loop.call_soon_threadsafe(tried.set)
                    raise

            loop = asyncio.get_running_loop()
            monkeypatch.setattr(store, "_apply", apply_and_tell)
            writing = asyncio.ensure_future(group_commit.write(job("j1")))
            await tried.wait()
            assert not writing.done()
            other.execute("ROLLBACK")
            assert isinstance(await writing, Accepted)
            await group_commit.close()


async def test_commits_of_one_to_four_rows_are_the_same_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes several milliseconds to compile one."""
    statements: set[str] = set()

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if "INTO batch" in sql:
                statements.add(sql)
            return super().execute(sql, *parameters)

    monkeypatch.setattr(connect.sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
    async with opened(tmp_path / "x.db") as store:
        for n in range(4):
            await store.commit([Relayed(frozenset({1}))] * min(n, 1) + [job(f"{n}.{i}") for i in range(n)])
        assert len(statements) == 1
        await store.commit([RaiseEpoch(f"service:{i}") for i in range(9)])
        assert len(statements) == 2
        assert await store.count(ALL) == 6


async def test_ping_fails_after_a_failed_write_until_one_succeeds(tmp_path: Path) -> None:
    async with opened(tmp_path / "x.db") as store:
        assert store._writer is not None
        await store.ping()
        store._writer.execute("PRAGMA query_only = ON")
        with pytest.raises(Unavailable, match="read-only"):
            await store.commit([job("j1")])
        with pytest.raises(Unavailable, match="read-only"):
            await store.ping()
        store._writer.execute("PRAGMA query_only = OFF")
        await store.ping()
        assert isinstance((await store.commit([job("j1")])).outcomes[0], Accepted)
        await store.ping()


async def test_ping_does_not_wait_for_another_processs_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT", 0.01)
    path = tmp_path / "x.db"
    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Busy):
                await store.commit([job("j1")])
            await store.ping()


async def test_ping_fails_when_the_file_is_gone_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened(path) as store:
        await store.commit([job("j1")])
        await store.ping()
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(Unavailable, match="deleted"):
            await store.ping()
        path.write_bytes((tmp_path / "elsewhere.db").read_bytes())
        with pytest.raises(Unavailable, match="replaced"):
            await store.ping()
        (tmp_path / "elsewhere.db").rename(path)
        await store.ping()


# ---------------------------------------------------------------- cost


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("due", "job_timer"),
        ("next_timer", "job_timer"),
        ("promotable", "job_open"),
        ("next_promotion", "job_open"),
        ("waiting", "job_open"),
        ("running", "job_open"),
        ("turn_owners", "job_turn"),
        ("turns_of", "job_turn"),
    ],
)
async def test_the_managers_reads_use_their_index(tmp_path: Path, name: str, index: str) -> None:
    async with opened(tmp_path / "x.db"):
        with closing(sqlite3.connect(tmp_path / "x.db")) as raw:
            sql = re.sub(
                r"^--.*$",
                "",
                load("fairlead.store.sqlite", "queries.sql")[name].replace("{lanes}", "TRUE"),
                flags=re.MULTILINE,
            )
            plan = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {sql}", [0] * sql.count("?"))]
    assert any(index in step for step in plan), plan
    assert not any(step.startswith("SCAN job") and index not in step for step in plan), plan


class Counted:
    """A connection that counts its calls."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.connection, name)

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        self.calls += 1
        return self.connection.execute(sql, parameters)


async def test_a_commit_calls_sqlite_twice_whatever_its_size(tmp_path: Path) -> None:
    """Each return from SQLite to Python waits for the interpreter's lock, for long if the event loop is busy: row by
    row, or statement by statement, commits would then take many times as long. bench/store.py has the figures."""
    async with opened(tmp_path / "x.db", synchronous="OFF") as store:
        assert store._writer is not None
        counted = Counted(store._writer)
        store._writer = counted  # type: ignore[assignment]
        await store.commit([job("a")])
        await store.commit([*(job(f"b-{n}") for n in range(500)), Relayed((1,)), EndHolds(0.0), RaiseEpoch("x")])
        assert counted.calls == 4


@pytest.mark.parametrize("enabled", [False, True])
async def test_the_switch_interval_is_changed_during_commits_only_and_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    monkeypatch.setattr(gil, "_enabled", enabled)
    usual = sys.getswitchinterval()
    changes: list[float] = []
    setter = sys.setswitchinterval
    monkeypatch.setattr(sys, "setswitchinterval", lambda interval: (changes.append(interval), setter(interval)))
    async with opened(tmp_path / "x.db") as store:
        await asyncio.gather(store.commit([job("a")]), store.get("a"), store.commit([job("b")]))
        assert sys.getswitchinterval() == usual
    assert bool(changes) is enabled


def test_the_database_url_can_set_a_short_switch_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gil, "_enabled", False)
    store_of(f"sqlite:///{tmp_path}/x.db", time.time)
    assert not gil._enabled
    store_of(f"sqlite:///{tmp_path}/x.db?switch_interval=short", time.time)
    assert gil._enabled
