"""The dispatcher in Redis or Valkey: for any number of processes on any number of machines.

`keys` has the keyspace; `scripts/` one Lua file per operation, each of which is atomic; `dispatcher` calls them, one
per scope, all scopes in one round trip; `claims` spreads a worker's room over scopes; `wakes` tells this process's
worker. `leadership` says who leads, `bus` carries messages. Below them all: `connection` makes calls, `clients` knows
the kinds of URLs, `slots` the nodes of a Cluster, `identity` which server is at the other end, `subscriber` listens.
"""

from fairlead.dispatch.redis.bus import RedisBus
from fairlead.dispatch.redis.dispatcher import RedisDispatcher
from fairlead.dispatch.redis.leadership import RedisLeadership

__all__ = ["RedisBus", "RedisDispatcher", "RedisLeadership"]
