"""Which scopes there are and the services of each, and one script called for many of them in one round trip."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from fairlead.dispatch.port import Release
from fairlead.dispatch.redis.connection import Call, Connection
from fairlead.dispatch.redis.identity import Admit
from fairlead.dispatch.redis.keys import keys_of, scope_key, scopes_key
from fairlead.dispatch.redis.replies import NUL, Arg, joined, names
from fairlead.dispatch.redis.sync_connection import SyncConnection
from fairlead.domain.limits import Rules, ServiceRules
from fairlead.domain.order import micros
from fairlead.errors import Unavailable

UNDECLARED = -1
"""A script's answer when the scope has services that it was not given the keys of: another process has newer rules."""


class Scopes:
    def __init__(self, url: str, prefix: str, clock: Callable[[], float] | None, admit: Admit | None) -> None:
        self.connection = Connection(url, admit)
        self.ungated = self.connection if admit is None else Connection(url)
        """To whatever server is there: to ask who it is, to listen, and for the list of scopes, which is no part of
        any of them: on a Cluster the node that has it may have nothing that a rebuild would name it for."""
        self.prefix = prefix
        self.process = secrets.token_hex(8)
        self.rules: Rules | None = None
        self.services: dict[str, set[str]] = {}
        """Of every scope that this process knows of."""
        self._url = url
        self._clock = clock
        self._admit = admit
        self._sync: SyncConnection | None = None
        self._sync_is_old = False
        self._keys: dict[str, tuple[str, tuple[str, ...]]] = {}

    def of(self, service: str) -> str:
        """What is offered for a service that the rules do not know (yet) waits in a scope of its own."""
        rules = self.rules.services.get(service) if self.rules is not None else None
        return (rules or ServiceRules(service, limit=0)).scope

    def of_release(self, release: Release) -> str:
        return release.scope if release.scope in self.services else self.of(release.service)

    def now(self) -> float:
        """Seconds, to measure times between claims by."""
        return time.monotonic() if self._clock is None else self._clock()

    @property
    def configured(self) -> list[str]:
        return sorted(self.rules.scopes if self.rules is not None else self.services)

    def key(self, scope: str, name: str) -> str:
        return scope_key(self.prefix, scope, name)

    # -- what there is -------------------------------------------------------------------------------------------

    def learn(self, scope: str, services: Iterable[str]) -> set[str]:
        """Those of the services that were new."""
        known = self.services.setdefault(scope, set())
        new = set(services) - known
        if new:
            known |= new
            self._keys.pop(scope, None)
        return new

    async def register(self, by_scope: Mapping[str, Iterable[str]]) -> None:
        """Make scopes known to all processes, each with these services and those that it is known to have."""
        wanted = {scope: self.services.get(scope, set()).union(services) for scope, services in by_scope.items()}
        members = [f"{scope}{NUL}{service}" for scope, services in wanted.items() for service in services]
        if members:
            await self.ungated.command("SADD", scopes_key(self.prefix), *members)
        for scope, services in wanted.items():
            self.learn(scope, services)

    async def register_new(self, by_scope: Mapping[str, Set[str]]) -> None:
        new = {scope: services for scope, services in by_scope.items() if services - self.services.get(scope, set())}
        if new:
            await self.register(new)

    async def refresh(self) -> None:
        """Learn what other processes have made known."""
        for member in await self.ungated.command("SMEMBERS", scopes_key(self.prefix)):
            scope, _, service = member.decode().partition(NUL)
            self.learn(scope, [service])

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, script: str, scope: str, args: Sequence[Arg]) -> Call:
        if scope not in self._keys:
            names = sorted(self.services.get(scope, ()))
            self._keys[scope] = (joined(names), tuple(keys_of(self.prefix, scope, names)))
        names_arg, keys = self._keys[scope]
        now = "" if self._clock is None else micros(self._clock())
        return Call(script, keys, (now, names_arg, self.process, "1" if self.connection.cluster else "0", *args))

    async def run(
        self, script: str, args: Mapping[str, Sequence[Arg]], *, failed: dict[str, Unavailable] | None = None
    ) -> dict[str, Any]:
        """Call a script for these scopes, each with its own arguments; the answers, by scope. With `failed`, scopes on
        which it failed are noted there, unless it failed on all: one node of a Cluster is not to stop the others."""
        done: dict[str, Any] = {}
        failures: dict[str, Unavailable] = {}
        while missing := [scope for scope in args if scope not in done and scope not in failures]:
            answers = await self.connection.run_each([self.call(script, scope, args[scope]) for scope in missing])
            failures |= {
                scope: each for scope, each in zip(missing, answers, strict=True) if isinstance(each, Unavailable)
            }
            done |= self._declared(missing, answers)
        if failures and (failed is None or not done):
            raise next(iter(failures.values()))
        if failed is not None:
            failed |= failures
        return done

    def run_sync(self, script: str, args: Mapping[str, Sequence[Arg]]) -> dict[str, Any]:
        """The same, from another thread."""
        if self._sync is None or self._sync_is_old:
            if self._sync is not None:
                self._sync.close()
            self._sync_is_old = False
            self._sync = SyncConnection(self._url, self._admit)
        done: dict[str, Any] = {}
        while missing := [scope for scope in args if scope not in done]:
            answers = self._sync.run([self.call(script, scope, args[scope]) for scope in missing])
            done |= self._declared(missing, answers)
        return done

    def _declared(self, scopes: list[str], answers: list[Any]) -> dict[str, Any]:
        """Without those of scopes that turned out to have more services: they are to be asked again."""
        good = {}
        for scope, answer in zip(scopes, answers, strict=True):
            if isinstance(answer, Unavailable):
                continue
            if answer and answer[0] == UNDECLARED:
                self.learn(scope, names(answer[1]))
            else:
                good[scope] = answer
        return good

    async def reconnect(self) -> None:
        self._sync_is_old = True  # it is the other thread's to close
        await self.connection.drop()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in {self.connection, self.ungated}))
        if self._sync is not None:
            self._sync.close()
