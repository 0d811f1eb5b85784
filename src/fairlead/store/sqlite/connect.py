"""Opens a database file after checking its application id, integrity and schema version.

A refused file is left unchanged: the checks read its header and use a connection that does not write. A new database is
migrated *before* it is switched to WAL, so that the application id is in the file itself and not only in the
write-ahead log.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from fairlead.errors import InvalidInput, StoreError, Unavailable
from fairlead.store.port import Busy
from fairlead.store.sql_files import migrations
from fairlead.store.sqlite.lock import is_open_here

APPLICATION_ID = 0x4641_4952  # "FAIR"
OLDEST_SQLITE = (3, 38, 0)  # `->>`, and json_each as a part of every build
BUSY_TIMEOUT = 5.0
MODE = 0o600
MIN_FREE_SPACE = 1 << 20  # bytes
COPY_LIMIT = 4000
"""A commit copies the write-ahead log into the database itself (a checkpoint) if the log has this many pages."""
_MIGRATIONS = "fairlead.store.sqlite"
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_AWAY = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk cannot be read or written",
    sqlite3.SQLITE_READONLY: "the file is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_NOMEM: "out of memory",
}
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def known_version() -> int:
    return len(migrations(_MIGRATIONS))


def version_of(path: str) -> int:
    """Read the schema version (`user_version`) from the header of the file, without locking or writing."""
    try:
        with Path(path).open("rb") as file:
            return int.from_bytes(file.read(64)[60:64], "big")
    except OSError:
        return 0  # missing or unreadable, which `prepare` reports


def found_version(path: str) -> int | None:
    """The schema version of a database that other processes may be using. The newest version may be in the write-ahead
    log only, so this opens the database if there is a log. Returns None if there is no file. Changes nothing."""
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


def size_of_log(path: str) -> int:
    try:
        return os.path.getsize(f"{path}-wal")
    except OSError:
        return 0  # no log


def is_readable_by_others(path: str) -> bool:
    """Whether every user of this machine can read the file."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IROTH)
    except OSError:
        return False


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Translate errors of SQLite: transient ones to Busy, lasting ones to Unavailable, and errors of broken files to
    StoreError."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidInput("a text must not contain a lone surrogate") from error
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
    """Check or create the file, and migrate its schema."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: 3.38 or newer is needed")
    if path == ":memory:" or not path:
        raise StoreError("an in-memory database would lose every accepted job; use the path of a file")
    _check_path(Path(path))
    with translated(path):
        try:
            if not is_open_here(path):
                _check(path)
            _create(path)
        except OSError as error:
            raise StoreError(f"the database {path} cannot be read: {error.strerror or error}") from error
        _migrate(path)


def _check_path(file: Path) -> None:
    """Raise an error that names the exact problem of the path. SQLite only reports "unable to open database file"."""
    folder = file.parent
    if file.is_dir():
        raise StoreError(f"the database {file} is a directory; use a file in it, such as {file}/fairlead.db")
    if not folder.is_dir():
        raise StoreError(
            f"the database {file} cannot be created: the directory {folder} does not exist; create it first"
        )
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        raise StoreError(f"the database {file} cannot be used: this user may not read and write it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"the database {file} cannot be used: this user may not write to the directory {folder}")


def _check(path: str) -> None:
    file = Path(path)
    if not file.exists() or not file.stat().st_size:
        return
    with file.open("rb") as opened:
        header = opened.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{path} is not a SQLite database; it was not changed")
    (version,) = struct.unpack(">I", header[60:64])
    (application,) = struct.unpack(">I", header[68:72])
    if application not in (0, APPLICATION_ID):
        raise StoreError(f"{path} is the SQLite database of another application; it was not changed")
    if version > known_version():
        raise StoreError(_newer(path, version))
    if not _in_use(path):
        _check_pages(path, header)
    _check_schema(path, application, in_wal=header[18] == 2)


def _create(path: str) -> None:
    """Create the database file, readable by its owner only. SQLite gives its other files the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, MODE))


def _in_use(path: str) -> bool:
    """Whether the database has a log file. The log may hold newer data than the database file."""
    return os.path.exists(f"{path}-wal") or os.path.exists(f"{path}-journal")


def _check_pages(path: str, header: bytes) -> None:
    (page_size,) = struct.unpack(">H", header[16:18])
    changed, pages, valid_for = (struct.unpack(">I", header[at : at + 4])[0] for at in (24, 28, 92))
    expected = pages * (65536 if page_size == 1 else page_size)
    if changed == valid_for and os.path.getsize(path) < expected:
        raise StoreError(f"the database {path} is corrupt: it should have {expected} bytes; restore it from a backup")


def _check_schema(path: str, application: int, *, in_wal: bool) -> None:
    # With `immutable`, SQLite creates no files, not even the index of a log. It must not be used while another process
    # writes.
    options = "mode=ro&immutable=1" if in_wal and not _in_use(path) else "mode=ro"
    connection = sqlite3.connect(f"file:{quote(path)}?{options}", uri=True, timeout=BUSY_TIMEOUT)
    try:
        # Read the id again: another process may have created the schema since the header was read.
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
        raise StoreError(f"{path} is the SQLite database of another application; it was not changed")


def _migrate(path: str) -> None:
    """Apply each missing migration in its own transaction. The transaction first checks whether another process has
    already applied that migration."""
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
        f"the database {path} has schema version {version}, but this Fairlead supports up to {known_version()}; "
        "use the Fairlead that wrote it, or a newer one"
    )


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements. `executescript` cannot be used: it commits first, so the migration would not be
    one transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch the database to WAL. The switch needs exclusive access. SQLite does not wait for it, so this function
    retries for a while."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def writer(path: str, synchronous: str, *, overwrites: bool) -> sqlite3.Connection:
    """The connection that writes. With `overwrites`, it overwrites what it deletes with zeros."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT, check_same_thread=False)
    connection.execute(f"PRAGMA wal_autocheckpoint = {COPY_LIMIT}")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    if overwrites:
        connection.execute("PRAGMA secure_delete = ON")
    return connection


def copy_log(connection: sqlite3.Connection) -> None:
    """Copy the write-ahead log into the database (a checkpoint), as far as readers allow. Only the connection that
    writes may do so: SQLite before 3.51.3 can corrupt the database if one connection copies the log while another one
    commits (https://sqlite.org/wal.html#walresetbug)."""
    with suppress(sqlite3.Error):  # such as a full disk: nothing is lost, and commits report it
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def empty_log(connection: sqlite3.Connection) -> bool:
    """Copy the write-ahead log into the database and truncate it, unless a reader or another process is in the way.
    Returns whether it is empty."""
    connection.execute("PRAGMA busy_timeout = 100")
    try:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy
    except sqlite3.OperationalError:
        return False
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1000:.0f}")


def try_to_write(connection: sqlite3.Connection, path: str) -> None:
    """Check that the database can be written, by storing its version again. That write is small and can succeed on a
    disk that is too full for a job, so some free space is required as well. Raises `Unavailable`."""
    free = os.statvfs(path)
    if free.f_bavail * free.f_frsize < MIN_FREE_SPACE:
        text = f"less than {MIN_FREE_SPACE >> 20} MiB is free"
        raise Unavailable(f"the disk is full: {path} ({text})", retry_after=5.0, public="the disk is full")
    connection.execute(f"PRAGMA user_version = {_version(connection)}")


def reader(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT, check_same_thread=False
    )
