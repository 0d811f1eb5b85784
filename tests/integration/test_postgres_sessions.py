"""Which sessions of PostgreSQL are used, and which are dropped: read-only ones, reset ones, standbys. Behind a pooler
the sessions are the pooler's, so tests of what happens to a session connect directly."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from fairlead.errors import AlreadyDispatching, Unavailable
from fairlead.store.port import Accepted, Busy, RaiseEpoch, Started
from fairlead.store.postgres import connect, lock
from tests import servers
from tests.disks import fill, small_disk
from tests.integration.test_postgres_store import job, opened, raw, start


async def set_read_only(url: str, setting: str) -> None:
    """For new sessions, as an operator does it."""
    async with raw(url) as connection:
        await connection.execute("SET default_transaction_read_only = off")
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {setting}")


async def test_ping_fails_after_a_failed_commit_until_one_succeeds(database: str) -> None:
    """As after a fail-over to a standby: it can be read, but not written."""
    async with opened(servers.direct(database), pool_size=1) as store:
        await store.ping()
        await set_read_only(database, "on")
        with pytest.raises(Busy, match="read-only"):
            await store.commit([job("j1")])
        with pytest.raises(Unavailable, match="read-only"):
            await store.ping()
        await set_read_only(database, "off")
        await store.ping()
        assert isinstance((await store.commit([job("j1")])).outcomes[0], Accepted)


async def test_a_session_that_began_read_only_is_not_reused(database: str) -> None:
    async with opened(servers.direct(database), pool_size=1) as store:
        await set_read_only(database, "on")
        with pytest.raises(Busy, match="read-only"):
            await store.commit([job("j1")])
        with pytest.raises(Busy, match="read-only"):
            await store.commit([job("j1"), RaiseEpoch("service:draw", "s")])
        await set_read_only(database, "off")
        assert isinstance((await store.commit([job("j1")])).outcomes[0], Accepted)


async def test_sessions_that_lost_their_prepared_statements_are_replaced(emptied_database: str) -> None:
    """As behind a pooler that resets a session with DISCARD ALL."""
    async with opened(servers.direct(emptied_database), pool_size=1) as store:
        await store.commit([job("j1")])
        await store.get("j1")
        async with store._writers().connection() as connection:
            await connection.execute("DISCARD ALL")
        await store._ask("DISCARD ALL")
        with pytest.raises(Busy):
            await store.commit([job("j2")])
        assert isinstance((await store.commit([job("j2")])).outcomes[0], Accepted)
        with pytest.raises(Busy):
            await store.get("j1")
        assert await store.get("j1") is not None


async def test_a_commit_is_retried_after_a_table_was_altered(database: str) -> None:
    """As by a migration while processes run: the cached plans of a session are no longer valid."""
    async with opened(servers.direct(database), pool_size=1) as store:
        await store.commit([job("j1"), job("j2")])
        await store.commit([start("j1"), RaiseEpoch("service:other", "s")])
        async with raw(database) as connection:
            await connection.execute("DROP VIEW fairlead.tasks")
            await connection.execute("ALTER TABLE fairlead.job ALTER COLUMN worker TYPE varchar(200)")
        with pytest.raises(Busy, match="cached statement plan is invalid"):
            await store.commit([start("j2"), RaiseEpoch("service:other", "s")])
        (started, _) = (await store.commit([start("j2"), RaiseEpoch("service:other", "s")])).outcomes
        assert isinstance(started, Started)


async def test_the_primary_of_several_hosts_is_used_before_and_after_a_fail_over() -> None:
    primary = servers.own_postgres()
    standby = primary.standby()
    try:
        hosts = f"fairlead@127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
        async with opened(f"postgresql://{hosts}/postgres", pool_size=1) as store:
            await store.lock_dispatch()
            await store.commit([job("before")])
            async with raw(standby.url) as connection:
                # The standby has it, so no accepted job is missing after the fail-over.
                while not await connection.fetchval("SELECT to_regclass('fairlead.job') IS NOT NULL"):
                    await connection.execute("SELECT pg_sleep(0.02)")
                while not await connection.fetchval("SELECT count(*) FROM fairlead.job"):
                    await connection.execute("SELECT pg_sleep(0.02)")
                with pytest.raises(AlreadyDispatching):
                    async with opened(primary.url, pool_size=1) as other:
                        await other.lock_dispatch()
                primary.stop()
                with pytest.raises(Unavailable):
                    await store.commit([job("meanwhile")])
                assert await connection.fetchval("SELECT pg_promote()")
            assert isinstance((await store.commit([job("after")])).outcomes[0], Accepted)
            assert sorted(await store.get_jobs(["before", "meanwhile", "after"])) == ["after", "before"]
            with pytest.raises(AlreadyDispatching):
                async with opened(standby.url, pool_size=1) as other:
                    await other.lock_dispatch()
    finally:
        standby.remove()
        primary.remove()


async def test_a_host_that_does_not_answer_does_not_prevent_the_use_of_another(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        url = urlsplit(emptied_database)
        user, _, host = url.netloc.rpartition("@")
        async with opened(urlunsplit(url._replace(netloc=f"{user}@{place},{host}"))) as store:
            await store.commit([job("j1")])
            assert await store.get("j1") is not None


async def test_ping_fails_while_the_disk_is_full() -> None:
    """An update of one row may still work: its page has room."""
    server = servers.postgres()
    if server is None:
        servers.missing("there is no PostgreSQL that has disks of this machine")
    with small_disk(14 << 20) as folder:
        (folder / "space").mkdir()
        shutil.chown(folder / "space", servers.unprivileged())
        async with raw(server.url) as connection:
            await connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}/space'")
            await connection.execute("CREATE DATABASE on_small TABLESPACE small")
        try:
            await _fill(urlunsplit(urlsplit(server.url)._replace(path="/on_small")), folder / "filler")
        finally:
            async with raw(server.url) as connection:
                await connection.execute("DROP DATABASE on_small WITH (FORCE)")
                await connection.execute("DROP TABLESPACE small")


async def _fill(url: str, filler: Path) -> None:
    async with opened(url, pool_size=1) as store:
        await store.commit([job("small")])
        fill(filler)
        large = replace(job("large"), input_json=f'"{random.randbytes(200_000).hex()}"')
        for _ in range(2):
            with pytest.raises(Unavailable, match="No space"):
                await store.commit([large])
            with pytest.raises(Unavailable, match="No space"):
                await store.ping()
        os.unlink(filler)
        await store.ping()
        assert isinstance((await store.commit([large])).outcomes[0], Accepted)


async def test_a_lock_that_an_earlier_session_of_this_process_holds_is_taken_over(emptied_database: str) -> None:
    """The network was cut without closing the connection: for the server the old session lives on, perhaps for
    hours."""
    async with opened(emptied_database) as store:
        await store.lock_dispatch()
        lost, store._dispatch_lock._connection = store._dispatch_lock._connection, None
        assert lost is not None
        async with asyncio.timeout(20):
            while True:
                try:
                    (outcome,) = (await store.commit([job("after")])).outcomes
                    break
                except Busy:
                    await asyncio.sleep(0.02)
        assert isinstance(outcome, Accepted)
        assert lost.is_closed()


async def test_a_lock_whose_holder_has_just_ended_is_retried(
    emptied_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(emptied_database) as holder, opened(emptied_database) as store:
        await holder.lock_dispatch()
        monkeypatch.setattr(lock, "_HOLDER", "SELECT 'none', 0 WHERE $1::bigint + $2::bigint < 0")
        with pytest.raises(Busy):
            await store.lock_dispatch()
        await holder._dispatch_lock.release()
        await store.lock_dispatch()
