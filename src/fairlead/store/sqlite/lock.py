"""Only one process may dispatch from memory for a database: it holds this lock beside the file.

The operating system gives the lock back when the process ends, however it ends; the file itself stays.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from fairlead.errors import AlreadyDispatching, StoreError


class DispatchLock:
    def __init__(self, path: str) -> None:
        self._path = f"{path}.lock"
        self._fd: int | None = None

    def acquire(self) -> None:
        if self._fd is not None:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"the lock {self._path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise AlreadyDispatching(
                f"the process {holder} dispatches from this database already (it holds {self._path}): "
                "submit to it from here, or stop it; to run several, use PostgreSQL and Redis: "
                "set DATABASE_URL and REDIS_URL"
            ) from error
        except OSError as error:
            os.close(fd)
            raise StoreError(f"the file system of {self._path} has no locks: {error.strerror}") from error
        with suppress(OSError):  # a full disk: whose it is can then not be told, but the lock holds
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
