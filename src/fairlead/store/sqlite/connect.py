"""Opening a database file: is it one of ours, is it whole, is its schema the one we know?

A file that is refused is left exactly as it was: what can be told is told from its header and from a connection that
does not write. A new database is migrated *before* it is switched to WAL, so the application id is always in the file
itself, and never only in a log.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from fairlead.errors import StoreError, Unavailable
from fairlead.store.migrate import migrations
from fairlead.store.port import Busy

APPLICATION_ID = 0x4641_4952  # "FAIR"
OLDEST_SQLITE = (3, 38, 0)  # `->>`, and json_each as a part of every build
BUSY_TIMEOUT = 5.0
_MIGRATIONS = "fairlead.store.sqlite"
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_AWAY = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk cannot be read or written",
    sqlite3.SQLITE_READONLY: "the file is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def known_version() -> int:
    return len(migrations(_MIGRATIONS))


def version_of(path: str) -> int:
    """From the file's header, where SQLite keeps `user_version`: reading it locks and writes nothing."""
    try:
        with Path(path).open("rb") as file:
            return int.from_bytes(file.read(64)[60:64], "big")
    except OSError:
        return 0  # there is none, or none that can be opened, which `prepare` says


def found_version(path: str) -> int | None:
    """Of a database that others may be using: then the newest version may be in the log only. None: there is none.
    Nothing is created or changed."""
    if not os.path.exists(path):
        return None
    if not _in_use(path):
        return version_of(path)
    with translated(path):
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=BUSY_TIMEOUT)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            return int(version)
        finally:
            connection.close()


def identity(path: str) -> tuple[int, int]:
    """Which file it is, whatever it is called."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def size_of_log(path: str) -> int:
    try:
        return os.path.getsize(f"{path}-wal")
    except OSError:
        return 0  # nobody writes


@contextmanager
def translated(path: str) -> Iterator[None]:
    """SQLite's errors as ours: what passes by itself, what an operator must mend, what cannot be used at all."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            text = f"another process keeps the database {path} locked: {error}"
            raise Busy(text, public="another process keeps the database locked") from error
        if code in _AWAY:
            text = f"{_AWAY[code]}: {path} ({error})"
            raise Unavailable(text, retry_after=5.0, public=_AWAY[code]) from error
        if code in _BROKEN:
            raise StoreError(f"the database {path} is corrupt: {error}") from error
        raise


def prepare(path: str) -> None:
    """Check the file, create it if there is none, and bring its schema up to date."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: 3.38 or newer is needed")
    if path == ":memory:" or not path:
        raise StoreError("a database in memory would lose every accepted job; give a file's path")
    _check_place(Path(path))
    with translated(path):
        try:
            _check(path)
        except OSError as error:
            raise StoreError(f"the database {path} cannot be read: {error.strerror or error}") from error
        _migrate(path)


def _check_place(file: Path) -> None:
    """SQLite says no more than "unable to open database file"."""
    folder = file.parent
    if file.is_dir():
        raise StoreError(f"the database {file} is a folder; give the path of a file in it, such as {file}/fairlead.db")
    if not folder.is_dir():
        raise StoreError(f"the database {file} cannot be made: there is no folder {folder}; make it first")
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        raise StoreError(f"the database {file} cannot be used: this user may not read and write it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"the database {file} cannot be used: this user may not write in the folder {folder}")


def _check(path: str) -> None:
    file = Path(path)
    if not file.exists() or not file.stat().st_size:
        return
    with file.open("rb") as opened:
        header = opened.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{path} is not a SQLite database; it is left as it is")
    (version,) = struct.unpack(">I", header[60:64])
    (application,) = struct.unpack(">I", header[68:72])
    if application not in (0, APPLICATION_ID):
        raise StoreError(f"{path} is the SQLite database of another application; it is left as it is")
    if version > known_version():
        raise StoreError(_newer(path, version))
    if not _in_use(path):
        _check_pages(path, header)
    _check_schema(path, application, in_wal=header[18] == 2)


def _in_use(path: str) -> bool:
    """Then the log belongs to the database, and its file alone says little."""
    return os.path.exists(f"{path}-wal") or os.path.exists(f"{path}-journal")


def _check_pages(path: str, header: bytes) -> None:
    (page_size,) = struct.unpack(">H", header[16:18])
    changed, pages, valid_for = (struct.unpack(">I", header[at : at + 4])[0] for at in (24, 28, 92))
    expected = pages * (65536 if page_size == 1 else page_size)
    if changed == valid_for and os.path.getsize(path) < expected:
        raise StoreError(f"the database {path} is corrupt: it should have {expected} bytes; restore it from a backup")


def _check_schema(path: str, application: int, *, in_wal: bool) -> None:
    # `immutable` touches nothing, not even a log's index; but it is not for a file that someone may be writing.
    options = "mode=ro&immutable=1" if in_wal and not _in_use(path) else "mode=ro"
    connection = sqlite3.connect(f"file:{quote(path)}?{options}", uri=True, timeout=BUSY_TIMEOUT)
    try:
        # The id is asked for again: another process may have created the schema since the header was read.
        connection.execute("BEGIN")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        raise StoreError(f"the database {path} is corrupt: {error}; restore it from a backup") from error
    finally:
        connection.close()
    if application != APPLICATION_ID and tables:
        raise StoreError(f"{path} is the SQLite database of another application; it is left as it is")


def _migrate(path: str) -> None:
    """Each migration is one transaction, which first looks whether another process has been here meanwhile."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT * 4)
    try:
        for migration in migrations(_MIGRATIONS):
            connection.execute("BEGIN IMMEDIATE")
            version = _version(connection)
            if version > known_version():
                connection.execute("ROLLBACK")
                raise StoreError(_newer(path, version))
            if version < migration.number:
                for statement in _statements(migration.sql):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {migration.number}")
            connection.execute("COMMIT")
        _use_wal(connection)
    finally:
        connection.close()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _newer(path: str, version: int) -> str:
    return (
        f"the database {path} has schema version {version}, this Fairlead knows versions up to {known_version()}; "
        "use the Fairlead that wrote it, or a newer one"
    )


def _statements(script: str) -> Iterator[str]:
    """`executescript` would commit first, and the migration would not be one transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _use_wal(connection: sqlite3.Connection) -> None:
    """The switch needs the file alone, and SQLite does not wait for it by itself."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def writer(path: str, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT, check_same_thread=False)
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


def try_to_write(connection: sqlite3.Connection) -> None:
    """A commit that changes nothing: the same version again."""
    connection.execute(f"PRAGMA user_version = {_version(connection)}")


def reader(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT, check_same_thread=False
    )
