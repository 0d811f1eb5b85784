"""The dispatcher in Redis or Valkey: for any number of processes on any number of machines.

`keys` has the keyspace; `scripts/` one Lua file per operation, each of which is atomic; `dispatcher` calls them, one
per scope, all scopes in one round trip; `claims` spreads a worker's room over scopes; `wakes` tells this process's
worker.
"""

from fairlead.dispatch.redis.dispatcher import RedisDispatcher

__all__ = ["RedisDispatcher"]
