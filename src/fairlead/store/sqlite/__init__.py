"""The SQLite store: one file, one process."""

from fairlead.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
