"""The dispatch lock of a database file, and the descriptors of that file other than SQLite's own.

Only one process may dispatch from memory for a database. The lock consists of two locks that the operating system
releases when the process ends. The file `fairlead.db.lock` contains the process id. Because that file can be deleted,
there is a second lock in the database file itself, on a byte far beyond its end and beyond the bytes that SQLite locks.
The second lock is an open-file-description lock, which only Linux has.

POSIX drops all fcntl locks of a process on a file when it closes any descriptor of that file. SQLite relies on its
fcntl locks: without them another process may delete the log that this process writes to. Descriptors of a database file
therefore stay open until no store in this process uses the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from collections import Counter
from contextlib import suppress

from fairlead.errors import AlreadyDispatching, StoreError

File = tuple[int, int]
"""The identity of a file: device and inode."""

_guard = threading.Lock()
_stores: Counter[File] = Counter()
_unused: dict[File, list[int]] = {}


def file_identity(path: str) -> File:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def is_open_here(path: str) -> bool:
    """Whether a store in this process uses this file."""
    try:
        return _stores[file_identity(path)] > 0
    except OSError:
        return False


def store_opened(file: File) -> None:
    with _guard:
        _stores[file] += 1


def store_closed(file: File) -> None:
    with _guard:
        _stores[file] -= 1
        if _stores[file] <= 0:
            del _stores[file]
            for descriptor in _unused.pop(file, ()):
                os.close(descriptor)


def close_later(descriptor: int) -> None:
    """Close the descriptor now, or when the last store in this process has closed the file."""
    status = os.fstat(descriptor)
    file = status.st_dev, status.st_ino
    with _guard:
        if _stores[file] > 0:
            _unused.setdefault(file, []).append(descriptor)
            return
        del _stores[file]
    os.close(descriptor)


LOCKED_BYTE = 1 << 62
_TAKEN = (errno.EAGAIN, errno.EACCES)


class DispatchLock:
    def __init__(self, path: str) -> None:
        self._database = path
        self._path = f"{path}.lock"
        self._fd: int | None = None
        self._database_fd: int | None = None

    def acquire(self) -> None:
        if self._fd is not None:
            return
        fd = self._lock_file()
        try:
            self._database_fd = self._lock_database()
        except BaseException:
            os.close(fd)
            raise
        with suppress(OSError):  # a full disk: the lock is held, only without the process id
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._database_fd is not None:
            _lock_byte(self._database_fd, fcntl.F_UNLCK)
            close_later(self._database_fd)
            self._database_fd = None

    def _lock_file(self) -> int:
        while True:
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise StoreError(f"the lock {self._path} cannot be opened: {error.strerror}") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                os.close(fd)
                raise self._taken(f"the process {holder}", self._path) from error
            except OSError as error:
                os.close(fd)
                raise StoreError(f"the file system of {self._path} does not support locks: {error.strerror}") from error
            with suppress(OSError):
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            os.close(fd)  # deleted or replaced since it was opened: no other process would see this lock

    def _lock_database(self) -> int | None:
        """Lock a byte of the database file, and return the descriptor. Returns None if the platform or file system does
        not support such locks."""
        if sys.platform != "linux":
            return None
        try:
            fd = os.open(self._database, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"the database {self._database} cannot be locked: {error.strerror}") from error
        try:
            _lock_byte(fd, fcntl.F_WRLCK)
        except OSError as error:
            close_later(fd)
            if error.errno not in _TAKEN:
                return None  # not supported by the file system
            raise self._taken("another process", f"a lock in {self._database}") from error
        return fd

    def _taken(self, holder: str, held: str) -> AlreadyDispatching:
        return AlreadyDispatching(
            f"{holder} already dispatches from this database (it holds {held}): "
            "submit to it from here, or stop it; to run several, use PostgreSQL and Redis: "
            "set DATABASE_URL and REDIS_URL"
        )


def _lock_byte(fd: int, kind: int) -> None:
    """Lock the byte LOCKED_BYTE. The packed `struct flock` has l_type, l_whence, l_start, l_len and l_pid."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, LOCKED_BYTE, 1, 0))
