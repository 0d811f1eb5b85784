"""The PostgreSQL store, shared by any number of processes."""

from fairlead.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
