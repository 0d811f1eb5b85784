"""Calls of scripts, many in one round trip to each server. Each is tried once, lasts at most `SOCKET_TIMEOUT_S`, and
fails with `Unavailable`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from redis.exceptions import MovedError, NoScriptError

from fairlead.dispatch.redis.clients import SOCKET_TIMEOUT_S, Address, async_client, parse
from fairlead.dispatch.redis.errors import ERRORS, takes_no_writes, unavailable
from fairlead.dispatch.redis.identity import Admit
from fairlead.dispatch.redis.links import Links, packed
from fairlead.dispatch.redis.scripts import script
from fairlead.dispatch.redis.slots import Slots
from fairlead.errors import Unavailable

LOOK_S = 1.0
"""For the answer of one node to where the keys are."""
MOST_AT_ONCE = 64
"""Connections of one process; further calls wait for one of them."""

Command = tuple[str | bytes | int, ...]
_ONLY: Address = ("", 0)
"""The one server, where there is no Cluster."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    script: str
    keys: tuple[str, ...]
    args: Sequence[str | bytes | int]

    @property
    def packed(self) -> bytes:
        count, opening = _opening(self.script, self.keys)
        _, _, args = packed(*self.args).partition(b"\r\n")
        return b"*%d\r\n%b%b" % (count + len(self.args), opening, args)

    @property
    def with_source(self) -> tuple[Any, ...]:
        return ("EVAL", script(self.script).source, len(self.keys), *self.keys, *self.args)

    @property
    def command(self) -> tuple[Any, ...]:
        return ("EVALSHA", script(self.script).sha, len(self.keys), *self.keys, *self.args)


@lru_cache(1024)  # one per script and scope
def _opening(name: str, keys: tuple[str, ...]) -> tuple[int, bytes]:
    """What all calls of a script for a scope begin with, and how many words that is."""
    words: Command = ("EVALSHA", script(name).sha, len(keys), *keys)
    return len(words), packed(*words).partition(b"\r\n")[2]


class Connection:
    """To a server, or to all nodes of a Cluster. With `admit`, every new connection is compared first (`identity`)."""

    def __init__(self, url: str, admit: Admit | None = None) -> None:
        self._target = parse(url)
        self._admit = admit
        self._slots = Slots(self._target.hosts)
        self._looking = asyncio.Lock()
        self._links: dict[Address, Links] = {}
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self.cluster = self._target.cluster
        if not self.cluster:
            self._links[_ONLY] = Links(async_client(self._target, admit))

    # -- calls ---------------------------------------------------------------------------------------------------

    async def run(self, calls: Sequence[Call]) -> list[Any]:
        """The answers, in order. Every call is made, even if another fails."""
        answers = await self.run_each(calls)
        for answer in answers:
            if isinstance(answer, Unavailable):
                raise answer
        return answers

    async def run_each(self, calls: Sequence[Call]) -> list[Any]:
        """The answers, in order; in place of a call that failed, its `Unavailable`."""
        if not self.cluster:
            answers = await self._run_on(_ONLY, calls)
        else:
            answers = [None] * len(calls)
            await self._spread(calls, range(len(calls)), answers)
            if moved := [i for i, answer in enumerate(answers) if isinstance(answer, MovedError)]:
                await self._spread(calls, moved, answers)
        return [await self._failed(each) if isinstance(each, Exception) else each for each in answers]

    async def _spread(self, calls: Sequence[Call], chosen: Iterable[int], answers: list[Any]) -> None:
        """Each call to the node that has its keys."""
        try:
            await self._look()
        except Unavailable as error:
            for i in chosen:
                answers[i] = error
            return
        by_node: dict[Address, list[int]] = {}
        for i in chosen:
            node = self._slots.node_of(calls[i].keys[0])
            if node is None:
                self._slots.doubt()
                answers[i] = Unavailable("no node of the Redis Cluster has these keys now")
            else:
                by_node.setdefault(node, []).append(i)

        async def ask(node: Address, those: list[int]) -> None:
            for i, answer in zip(those, await self._run_on(node, [calls[i] for i in those]), strict=True):
                answers[i] = answer
                if isinstance(answer, MovedError):
                    self._slots.learn_move(answer, node)
                elif isinstance(answer, Exception):
                    self._slots.doubt()

        await asyncio.gather(*(ask(node, those) for node, those in by_node.items()))

    async def _run_on(self, node: Address, calls: Sequence[Call]) -> list[Any]:
        """The answers of one server, or errors in their places."""
        try:
            answers = await self._ask(node, [call.packed for call in calls])
            for i, answer in enumerate(answers):
                if isinstance(answer, NoScriptError):
                    (answers[i],) = await self._ask(node, [packed(*calls[i].with_source)])
            return answers
        except ERRORS as error:
            return [error] * len(calls)

    async def command(self, *command: str | bytes | int) -> Any:
        """One of the server's own commands, whose first argument is its key."""
        if not self.cluster:
            return await self._command(_ONLY, command)
        await self._look()
        node = self._slots.node_of(str(command[1]))
        if node is None:
            raise Unavailable("no node of the Redis Cluster has this key now")
        try:
            return await self._command(node, command)
        except Unavailable as error:
            if not isinstance(error.__cause__, MovedError):
                raise
            self._slots.learn_move(error.__cause__, node)
            return await self._command((error.__cause__.host or node[0], error.__cause__.port), command)

    async def on_each(self, *command: str) -> list[Any]:
        """The answers of the server, or of all primaries of the Cluster."""
        return await asyncio.gather(*(self._command(node, command) for node in await self._primaries()))

    async def on_any(self, commands: Sequence[Command]) -> None:
        """Several together, to the server or any primary. What they answer is of no interest."""
        node = random.choice(await self._primaries())
        try:
            for answer in await self._ask(node, [packed(*command) for command in commands]):
                if isinstance(answer, Exception):
                    raise answer
        except ERRORS as error:
            raise await self._failed(error) from error

    async def connect(self) -> Any:
        """A connection of the caller's own, to the server or any primary: who subscribes needs one for itself."""
        connection = self._links_to(random.choice(await self._primaries())).make()
        try:
            async with asyncio.timeout(SOCKET_TIMEOUT_S), self._places:
                await connection.connect()
        except ERRORS as error:
            raise await self._failed(error) from error
        return connection

    async def _command(self, node: Address, command: Command) -> Any:
        try:
            (answer,) = await self._ask(node, [packed(*command)])
            if isinstance(answer, Exception):
                raise answer
            return answer
        except ERRORS as error:
            raise await self._failed(error) from error

    async def _ask(self, node: Address, commands: list[bytes]) -> list[Any]:
        links = self._links_to(node)
        if links.ready and not self._places.locked():
            async with self._places:  # there is nothing to wait for but the answers, and those have their time
                return await links.ask(commands, SOCKET_TIMEOUT_S)
        async with asyncio.timeout(SOCKET_TIMEOUT_S), self._places:
            return await links.ask(commands, SOCKET_TIMEOUT_S)

    async def _failed(self, error: Exception) -> Unavailable:
        """A server that takes no writes was demoted: all connections are to find its successor, and compare anew."""
        self._slots.doubt()
        if takes_no_writes(error):
            await self.drop()
        return unavailable(error)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _links_to(self, node: Address) -> Links:
        links = self._links.get(node)
        if links is None:
            links = self._links[node] = Links(async_client(self._target, self._admit, node))
        return links

    async def _primaries(self) -> list[Address]:
        if not self.cluster:
            return [_ONLY]
        await self._look()
        return self._slots.primaries

    async def _look(self) -> None:
        """Ask where the keys are, if that is not known or in doubt."""
        if not self._slots.in_doubt():
            return
        async with self._looking:
            if not self._slots.in_doubt():
                return
            error: Exception | None = None
            for node in self._slots.to_ask():
                try:
                    self._slots.learn(await self._slots_by(node), node)
                except ERRORS as failure:
                    error = failure
                else:
                    if self._slots.primaries:
                        await self._forget_lost_nodes()
                        return
            raise unavailable(error or LookupError("this Redis Cluster has no slots"))

    async def _slots_by(self, node: Address) -> Any:
        client = async_client(self._target, node=node)
        try:
            async with asyncio.timeout(LOOK_S):
                return await client.execute_command("CLUSTER", "SLOTS")
        finally:
            await client.aclose()

    async def _forget_lost_nodes(self) -> None:
        for node in self._links.keys() - set(self._slots.to_ask()):
            await self._links.pop(node).close()

    async def drop(self) -> None:
        """End all connections; the next call makes a new one."""
        self._slots.doubt()
        for links in list(self._links.values()):
            await links.drop()

    async def close(self) -> None:
        self._slots.doubt()
        for links in list(self._links.values()):
            await links.close()
