"""Calls Lua scripts, batched into one round trip per server.

Each call is tried once, takes at most `SOCKET_TIMEOUT_S`, and raises `Unavailable` if it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from redis.exceptions import MovedError, NoScriptError

from fairlead.dispatch.redis.connection import Connection, ConnectionPool, open_connection, packed
from fairlead.dispatch.redis.errors import DOWN_S, ERRORS, READ_ONLY_S, is_read_only, pause_of, unavailable
from fairlead.dispatch.redis.scripts import script
from fairlead.dispatch.redis.servers import (
    SOCKET_TIMEOUT_S,
    Address,
    Admit,
    ClusterSlots,
    async_client,
    parse,
    sentinels_of,
    sync_client,
)
from fairlead.errors import Unavailable

SLOTS_TIMEOUT_S = 1.0
"""How long to wait for the reply of one node to CLUSTER SLOTS."""
MAX_CONNECTIONS = 64
"""The maximum number of connections of a process. Further calls wait for a connection."""

WRITING = frozenset(
    {
        "exchange",
        "claim_new",
        "offer",
        "withdraw",
        "promote",
        "release",
        "hold",
        "end_holds",
        "expired",
        "snapshot",
        "sent",
        "rest",
    }
)
"""Scripts that always write: a server that executes them is not a replica."""

Command = tuple[str | bytes | int, ...]
ONLY_NODE: Address = ("", 0)
"""The address of the server, if there is no Cluster."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of a script, with its keys and arguments. `recurs`: more calls of the script on these keys follow."""

    script: str
    keys: tuple[str, ...]
    args: Sequence[str | bytes | int]
    recurs: bool = True

    @property
    def packed(self) -> bytes:
        if not self.recurs:
            return packed(*self.command)
        count, prefix = _packed_prefix(self.script, self.keys)
        _, _, args = packed(*self.args).partition(b"\r\n")
        return b"*%d\r\n%b%b" % (count + len(self.args), prefix, args)

    @property
    def with_source(self) -> tuple[Any, ...]:
        return ("EVAL", script(self.script).source, len(self.keys), *self.keys, *self.args)

    @property
    def command(self) -> tuple[Any, ...]:
        return ("EVALSHA", script(self.script).sha, len(self.keys), *self.keys, *self.args)


@lru_cache(1024)  # one per script and scope
def _packed_prefix(name: str, keys: tuple[str, ...]) -> tuple[int, bytes]:
    """The words with which every call of a script on these keys begins, as (number of words, their encoding in the wire
    format)."""
    words: Command = ("EVALSHA", script(name).sha, len(keys), *keys)
    return len(words), packed(*words).partition(b"\r\n")[2]


class ScriptClient:
    """Calls scripts on a server, or on all nodes of a Cluster. If `admit` is given, it checks the server's identity on
    every new connection."""

    def __init__(self, url: str, admit: Admit | None = None) -> None:
        self._target = parse(url)
        self._admit = admit
        self._slots = ClusterSlots(self._target.hosts)
        self._refreshing = asyncio.Lock()
        self._pools: dict[Address, ConnectionPool] = {}
        self._connections = asyncio.Semaphore(MAX_CONNECTIONS)
        self.cluster = self._target.cluster
        if not self.cluster:
            self._pools[ONLY_NODE] = self._new_pool(None)

    # -- calls ---------------------------------------------------------------------------------------------------

    async def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Make all calls and return the replies, in order. Raises `Unavailable` if a call failed, after all calls have
        been made."""
        replies = await self.run_each(calls)
        for reply in replies:
            if isinstance(reply, Unavailable):
                raise reply
        return replies

    async def run_each(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Make all calls and return the replies, in order. For a call that failed, the reply is an `Unavailable`."""
        if not calls:
            return []
        if not self.cluster:
            replies = await self._run_on(ONLY_NODE, calls)
        else:
            replies = [None] * len(calls)
            await self._run_on_nodes(calls, range(len(calls)), replies)
            if moved := [i for i, reply in enumerate(replies) if isinstance(reply, MovedError)]:
                await self._run_on_nodes(calls, moved, replies)
        return [self._failed(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def _run_on_nodes(self, calls: Sequence[ScriptCall], chosen: Iterable[int], replies: list[Any]) -> None:
        """Make the chosen calls, each on the Cluster node that has its keys, and store the replies in `replies`."""
        try:
            await self._refresh_slots()
        except Unavailable as error:
            for i in chosen:
                replies[i] = error
            return
        by_node: dict[Address, list[int]] = {}
        for i in chosen:
            node = self._slots.node_of(calls[i].keys[0])
            if node is None:
                self._slots.mark_stale()
                replies[i] = Unavailable("no node of the Redis Cluster serves these keys")
            else:
                by_node.setdefault(node, []).append(i)

        async def run(node: Address, indexes: list[int]) -> None:
            for i, reply in zip(indexes, await self._run_on(node, [calls[i] for i in indexes]), strict=True):
                replies[i] = reply
                if isinstance(reply, MovedError):
                    self._slots.learn_move(reply, node)
                elif isinstance(reply, Exception):
                    self._slots.mark_stale()

        await asyncio.gather(*(run(node, indexes) for node, indexes in by_node.items()))

    async def _run_on(self, node: Address, calls: Sequence[ScriptCall]) -> list[Any]:
        """Make these calls on one server and return the replies. For a call that failed, the reply is the error."""
        try:
            replies = await self._call(node, [call.packed for call in calls])
            for i, reply in enumerate(replies):
                if isinstance(reply, NoScriptError):
                    (replies[i],) = await self._call(node, [packed(*calls[i].with_source)])
            if calls and calls[0].script in WRITING and not isinstance(replies[0], Exception):
                self._pool(node).pause.end()
            return replies
        except ERRORS as error:
            return [error] * len(calls)

    async def command(self, *command: str | bytes | int) -> Any:
        """Run one Redis command and return its reply. The first argument of the command must be its key."""
        if not self.cluster:
            return await self._command(ONLY_NODE, command)
        await self._refresh_slots()
        node = self._slots.node_of(str(command[1]))
        if node is None:
            raise Unavailable("no node of the Redis Cluster serves this key")
        try:
            return await self._command(node, command)
        except Unavailable as error:
            if not isinstance(error.__cause__, MovedError):
                raise
            self._slots.learn_move(error.__cause__, node)
            return await self._command((error.__cause__.host or node[0], error.__cause__.port), command)

    async def on_each(self, *command: str) -> list[Any]:
        """Run a command on the server, or on all primaries of the Cluster, and return the replies."""
        return await asyncio.gather(*(self._command(node, command) for node in await self._primaries()))

    async def on_any(self, commands: Sequence[Command]) -> None:
        """Send commands to the server, or to any one primary of the Cluster. The replies are ignored."""
        node = random.choice(await self._primaries())
        try:
            for reply in await self._call(node, [packed(*command) for command in commands]):
                if isinstance(reply, Exception):
                    raise reply
        except ERRORS as error:
            raise self._failed(error) from error

    async def connect(self) -> Connection:
        """Open a dedicated connection, for subscriptions, to the server or to any primary of the Cluster."""
        pool = self._pool(random.choice(await self._primaries()))
        try:
            async with asyncio.timeout(SOCKET_TIMEOUT_S), self._connections:
                return await pool.connect()
        except ERRORS as error:
            raise self._failed(error) from error

    async def wait_to_retry(self, seconds: float) -> None:
        """Wait after a failure, at most `seconds`. Returns early when the server answers another component of this
        process. In a Cluster, where other nodes may be healthy, it never returns early."""
        if self.cluster:
            await asyncio.sleep(seconds)
        else:
            await self._pools[ONLY_NODE].pause.wait(seconds)

    async def _command(self, node: Address, command: Command) -> Any:
        try:
            (reply,) = await self._call(node, [packed(*command)])
            if isinstance(reply, Exception):
                raise reply
            return reply
        except ERRORS as error:
            raise self._failed(error) from error

    async def _call(self, node: Address, commands: list[bytes]) -> list[Any]:
        pool = self._pool(node)
        if pool.ready and not self._connections.locked():
            async with self._connections:  # a connection is free, so only the call can take time
                return await pool.call(commands, SOCKET_TIMEOUT_S)
        try:
            async with asyncio.timeout(SOCKET_TIMEOUT_S), self._connections:
                return await pool.call(commands, SOCKET_TIMEOUT_S)
        except TimeoutError as error:
            pool.pause.begin(error, DOWN_S)  # the server accepts connections, but does not reply
            raise

    def _failed(self, error: Exception) -> Unavailable:
        self._slots.mark_stale()
        if is_read_only(error):
            self.demoted(error)
        return unavailable(error)

    def is_master(self) -> None:
        """Record that the server accepts writes. Ends the pause that began when the server turned out to be
        read-only."""
        for pool in self._pools.values():
            pool.pause.end()

    def demoted(self, error: Exception) -> None:
        """Close all connections, because the server has become read-only. New connections find the new master and check
        its identity. In a Cluster the slot map names the new master."""
        if not self.cluster:
            self._pools[ONLY_NODE].pause.begin(error, READ_ONLY_S)
        self.drop()

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _pool(self, node: Address) -> ConnectionPool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools[node] = self._new_pool(node)
        return pool

    def _new_pool(self, node: Address | None) -> ConnectionPool:
        url, gated = self._target.url, self._admit is not None
        client = async_client(self._target, node)
        return ConnectionPool(client, self._admit, pause_of(url, node), pause_of(url, node, gated=gated))

    async def _primaries(self) -> list[Address]:
        if not self.cluster:
            return [ONLY_NODE]
        await self._refresh_slots()
        return self._slots.primaries

    async def _refresh_slots(self) -> None:
        """Fetch the slot map of the Cluster, if it is unknown or out of date."""
        if not self._slots.is_due():
            return
        async with self._refreshing:
            if not self._slots.is_due():
                return
            error: Exception | None = None
            for node in self._slots.candidates():
                try:
                    self._slots.learn(await self._slots_from(node), node)
                except ERRORS as failure:
                    error = failure
                else:
                    if self._slots.primaries:
                        await self._forget_lost_nodes()
                        return
            raise unavailable(error or LookupError("this Redis Cluster has no slots"))

    async def _slots_from(self, node: Address) -> Any:
        async with asyncio.timeout(SLOTS_TIMEOUT_S):
            pool = async_client(self._target, node).connection_pool
            connection = await open_connection(pool, None, SLOTS_TIMEOUT_S)
            try:
                (reply,) = await connection.call([packed("CLUSTER", "SLOTS")], SLOTS_TIMEOUT_S)
            finally:
                connection.close()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _forget_lost_nodes(self) -> None:
        for node in self._pools.keys() - set(self._slots.candidates()):
            await self._pools.pop(node).close()

    def drop(self) -> None:
        """Close all connections; the next call opens a new one."""
        self._slots.mark_stale()
        for pool in self._pools.values():
            pool.drop()

    def reconnect(self) -> None:
        """Close all connections and let the next call check the server's identity again, without a pause, because the
        database may now name another server."""
        for pool in self._pools.values():
            pool.gate.end()
        self.drop()

    async def close(self) -> None:
        self._slots.mark_stale()
        for pool in list(self._pools.values()):
            await pool.close()


class SyncScriptClient:
    """Like `ScriptClient`, but synchronous: makes one call at a time."""

    def __init__(self, url: str, admit: Admit | None = None) -> None:
        self._target = parse(url)
        self._admit = admit
        self._slots = ClusterSlots(self._target.hosts)
        self._clients: dict[Address, Any] = {}
        if not self._target.cluster:
            self._clients[ONLY_NODE] = sync_client(self._target, admit)

    def run(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Make all calls and return the replies, in order. The first error is raised after all calls have been made, so
        that one lost node of a Cluster does not affect the others."""
        replies: list[Any] = [None] * len(calls)
        remaining = list(range(len(calls)))
        for _ in range(2):  # a second time for keys that have moved
            for node, indexes in self._by_node(calls, remaining).items():
                for i, reply in zip(indexes, self._run_on(node, [calls[i] for i in indexes]), strict=True):
                    replies[i] = reply
                    if isinstance(reply, MovedError):
                        self._slots.learn_move(reply, node)
            remaining = [i for i, reply in enumerate(replies) if isinstance(reply, MovedError)]
            if not remaining:
                break
        for reply in replies:
            if isinstance(reply, Exception):
                self._slots.mark_stale()
                if is_read_only(reply):
                    for client in self._clients.values():
                        client.connection_pool.disconnect()
                raise unavailable(reply)
        return replies

    def _by_node(self, calls: Sequence[ScriptCall], chosen: list[int]) -> dict[Address, list[int]]:
        if not self._target.cluster:
            return {ONLY_NODE: chosen} if chosen else {}
        self._refresh_slots()
        by_node: dict[Address, list[int]] = {}
        for i in chosen:
            # If no node serves the keys, any node replies with that error.
            node = self._slots.node_of(calls[i].keys[0]) or self._slots.primaries[0]
            by_node.setdefault(node, []).append(i)
        return by_node

    def _run_on(self, node: Address, calls: Sequence[ScriptCall]) -> list[Any]:
        client = self._clients.get(node)
        if client is None:
            client = self._clients[node] = sync_client(self._target, self._admit, node)
        try:
            with client.pipeline(transaction=False) as pipeline:
                for call in calls:
                    pipeline.execute_command(*call.command)
                replies = list(pipeline.execute(raise_on_error=False))
            for i, reply in enumerate(replies):
                if isinstance(reply, NoScriptError):
                    replies[i] = client.execute_command(*calls[i].with_source)
            return replies
        except ERRORS as error:
            return [error] * len(calls)

    def _refresh_slots(self) -> None:
        if not self._slots.is_due():
            return
        error: Exception | None = None
        for node in self._slots.candidates():
            client = sync_client(self._target, node=node, timeout=SLOTS_TIMEOUT_S)
            try:
                self._slots.learn(client.execute_command("CLUSTER", "SLOTS"), node)
                if self._slots.primaries:
                    return
            except ERRORS as failure:
                error = failure
            finally:
                client.close()
        raise unavailable(error or LookupError("this Redis Cluster has no slots"))

    def close(self) -> None:
        for client in self._clients.values():
            for each in (*sentinels_of(client), client):
                with contextlib.suppress(*ERRORS):
                    each.close()
