"""Which scopes there are and the services of each, and one script called for many of them in one round trip."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fairlead.dispatch.redis.connection import Call, Connection, SyncConnection
from fairlead.dispatch.redis.keys import keys_of, scope_key, scopes_key
from fairlead.dispatch.redis.replies import NUL, Arg, joined, texts
from fairlead.domain.limits import Rules, ServiceRules
from fairlead.domain.order import micros

UNDECLARED = -1
"""A script's answer when the scope has services that it was not given the keys of: another process has newer rules."""


class Scopes:
    def __init__(self, url: str, prefix: str, clock: Callable[[], float] | None) -> None:
        self.connection = Connection(url)
        self.prefix = prefix
        self.process = secrets.token_hex(8)
        self.rules: Rules | None = None
        self.services: dict[str, set[str]] = {}
        """Of every scope that this process knows of."""
        self._url = url
        self._clock = clock
        self._sync: SyncConnection | None = None
        self._keys: dict[str, tuple[str, list[str]]] = {}

    def of(self, service: str) -> str:
        """What is offered for a service that the rules do not know (yet) waits in a scope of its own."""
        rules = self.rules.services.get(service) if self.rules is not None else None
        return (rules or ServiceRules(service, limit=0)).scope

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

    async def register(self, scope: str, services: Iterable[str]) -> None:
        """Make a scope known to all processes."""
        services = list(services)
        self.learn(scope, services)
        members = [f"{scope}{NUL}{service}" for service in services]
        if members:
            await self.connection.client.sadd(scopes_key(self.prefix), *members)

    async def register_new(self, by_scope: Mapping[str, Iterable[str]]) -> None:
        for scope, services in by_scope.items():
            new = set(services) - self.services.get(scope, set())
            if new:
                await self.register(scope, new)

    async def refresh(self) -> None:
        """Learn what other processes have made known."""
        for member in await self.connection.client.smembers(scopes_key(self.prefix)):
            scope, _, service = member.decode().partition(NUL)
            self.learn(scope, [service])

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, script: str, scope: str, args: Sequence[Arg]) -> Call:
        if scope not in self._keys:
            names = sorted(self.services.get(scope, ()))
            self._keys[scope] = (joined(names), keys_of(self.prefix, scope, names))
        names_arg, keys = self._keys[scope]
        now = "" if self._clock is None else micros(self._clock())
        return Call(script, keys, (now, names_arg, self.process, "1" if self.connection.cluster else "0", *args))

    async def run(self, script: str, args: Mapping[str, Sequence[Arg]]) -> dict[str, Any]:
        """Call a script for these scopes, each with its own arguments; the answers, by scope."""
        done: dict[str, Any] = {}
        while missing := [scope for scope in args if scope not in done]:
            answers = await self.connection.run([self.call(script, scope, args[scope]) for scope in missing])
            done |= self._declared(missing, answers)
        return done

    def run_sync(self, script: str, args: Mapping[str, Sequence[Arg]]) -> dict[str, Any]:
        """The same, from another thread."""
        if self._sync is None:
            self._sync = SyncConnection(self._url)
        done: dict[str, Any] = {}
        while missing := [scope for scope in args if scope not in done]:
            answers = self._sync.run([self.call(script, scope, args[scope]) for scope in missing])
            done |= self._declared(missing, answers)
        return done

    def _declared(self, scopes: list[str], answers: list[Any]) -> dict[str, Any]:
        """Without those of scopes that turned out to have more services: they are to be asked again."""
        good = {}
        for scope, answer in zip(scopes, answers, strict=True):
            if answer and answer[0] == UNDECLARED:
                self.learn(scope, texts(answer[1]))
            else:
                good[scope] = answer
        return good

    async def close(self) -> None:
        await self.connection.close()
        if self._sync is not None:
            self._sync.close()
