"""The Redis (or Valkey) dispatcher: for any number of processes on any number of machines.

`keys` documents the keyspace. `scripts/` has one Lua script per operation, and each script is atomic. `dispatcher`
calls the scripts, once per scope, and all scopes in one round trip. `claims` spreads a worker's budget over scopes and
wakes the worker. `leadership` elects the leader, `pubsub` carries messages. Underneath, `client` makes calls,
`connection` has the connections and their pool, and `servers` finds the servers of a URL and checks their identity.
"""

from fairlead.dispatch.redis.dispatcher import RedisDispatcher
from fairlead.dispatch.redis.leadership import RedisLeadership
from fairlead.dispatch.redis.pubsub import RedisPubSub

__all__ = ["RedisDispatcher", "RedisLeadership", "RedisPubSub"]
