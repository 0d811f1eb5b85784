"""The files of a SQLite store: their permissions, and what happens when they are deleted, moved, replaced or full."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fairlead import Fairlead
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.errors import AlreadyDispatching, Unavailable
from fairlead.store.port import Accepted, RaiseEpoch
from tests.disks import fill, small_disk
from tests.integration.doctor_site import command_in, provokes, until_found, until_gone
from tests.integration.test_sqlite_store import ALL, LOCK_AND_WAIT, job, opened, python


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


@pytest.mark.parametrize("change", [delete, move, replace])
@pytest.mark.parametrize("name", ["x.db", "x.db-wal", "x.db-shm"])
async def test_writes_to_a_file_that_is_gone_from_its_path_are_not_acknowledged(
    tmp_path: Path, change: Callable[[Path], None], name: str
) -> None:
    async with opened(tmp_path / "x.db") as store:
        await store.commit([job("before")])
        change(tmp_path / name)
        with pytest.raises(Unavailable, match="while it was open"):
            await store.commit([job("after")])
        with pytest.raises(Unavailable, match="while it was open"):
            await store.ping()


async def test_a_restored_file_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with opened(path) as store:
        await store.commit([job("before")])
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(Unavailable):
            await store.commit([job("meanwhile")])
        (tmp_path / "elsewhere").rename(path)
        await store.commit([job("after")])
        assert sorted(await store.get_jobs(["before", "meanwhile", "after"])) == ["after", "before"]


async def test_a_deleted_database_accepts_no_jobs_and_the_doctor_reports_it(tmp_path: Path) -> None:
    app = Fairlead(Settings(Config(), f"sqlite:///{tmp_path}/x.db"))
    app.service("gpu", limit=1)(lambda call: None)
    async with app.running():
        await app.submit("gpu")
        assert (await app.readiness())["ready"]
        (tmp_path / "x.db").unlink()
        with pytest.raises(Unavailable):
            await app.submit("gpu")
        readiness = await app.readiness()
        assert not readiness["ready"]
        assert "deleted or moved" in readiness["checks"]["store"]
        found = await until_found(app, "database-unreachable")
        assert "restart this process" in found["database-unreachable"].cause


async def test_a_changed_working_directory_does_not_change_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    async with opened(Path("x.db")) as store:
        monkeypatch.chdir(tmp_path / "folder")
        await store.commit([job("j1")])
        assert await store.count(ALL) == 1


# ---------------------------------------------------------------- the dispatch lock


async def test_without_its_lock_file_a_process_is_still_the_only_dispatcher(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    child = python(LOCK_AND_WAIT, str(path))
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == "locked\n"
    (tmp_path / "x.db.lock").unlink()
    async with opened(path) as store:
        with pytest.raises(AlreadyDispatching):
            await store.lock_dispatch()
        child.kill()
        await asyncio.to_thread(child.communicate)
        await store.lock_dispatch()


OPEN_AND_CLOSE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM job").fetchone()[0])
connection.close()
"""


async def test_closing_a_store_keeps_the_locks_of_another_one_in_its_process(tmp_path: Path) -> None:
    """Without them, another process would consider itself the last one, and delete the log."""
    path = tmp_path / "x.db"
    async with opened(path) as store:
        await store.commit([job("j1")])
        async with opened(path) as second:
            await second.lock_dispatch()
        async with opened(path) as third:
            await third.lock_dispatch()
            with pytest.raises(AlreadyDispatching):
                async with opened(path) as fourth:
                    await fourth.lock_dispatch()
        other = python(OPEN_AND_CLOSE, str(path))
        seen, problems = await asyncio.to_thread(other.communicate)
        assert (seen.strip(), problems) == ("1", "")
        assert (tmp_path / "x.db-wal").stat().st_size > 0
        await store.commit([job("j2")])
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT count(*) FROM job").fetchone() == (2,)


# ---------------------------------------------------------------- permissions


async def test_the_files_of_a_new_database_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with opened(tmp_path / "x.db") as store:
            await store.lock_dispatch()
            await store.commit([job("j1"), RaiseEpoch("service:draw", "s")])
            modes = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in os.listdir(tmp_path)}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("x.db", "x.db-wal", "x.db-shm", "x.db.lock"), 0o600)


@provokes("database-readable")
async def test_the_doctor_finds_a_database_that_every_user_can_read(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    async with Fairlead(Settings(Config(), f"sqlite:///{path}")).running() as app:
        await until_gone(app, "database-readable")
        path.chmod(0o644)
        found = await until_found(app, "database-readable")
        command = command_in(found["database-readable"], "chmod")
        await asyncio.to_thread(subprocess.run, ["sh", "-c", " ".join(command)], check=True)
        await until_gone(app, "database-readable")


# ---------------------------------------------------------------- a full disk


async def test_ping_fails_while_the_disk_is_full() -> None:
    """A commit without changes may still fit."""
    with small_disk(4 << 20) as folder:
        async with opened(folder / "x.db") as store:
            filler = folder / "filler"
            fill(filler)
            large = job("large", f'"{"x" * 500_000}"')
            with pytest.raises(Unavailable, match="disk is full"):
                await store.commit([large])
            with pytest.raises(Unavailable, match="disk is full"):
                await store.ping()
            with pytest.raises(Unavailable, match="disk is full"):
                await store.ping()
            filler.unlink()
            await store.ping()
            assert isinstance((await store.commit([large])).outcomes[0], Accepted)
