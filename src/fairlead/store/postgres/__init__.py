"""PostgreSQL: the truth on a server that any number of processes share."""

from fairlead.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
