"""SQLite: the truth in one file beside the process."""

from fairlead.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
