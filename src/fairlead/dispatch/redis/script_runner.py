"""Runs a script on many scopes in one round trip, and keeps the list of scopes with their services."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from fairlead.dispatch.port import Lease, Release
from fairlead.dispatch.redis.client import ScriptCall, ScriptClient, SyncScriptClient
from fairlead.dispatch.redis.codec import NUL, Arg, joined, names
from fairlead.dispatch.redis.errors import is_script_failure
from fairlead.dispatch.redis.keys import keys_of, scope_key, scopes_key
from fairlead.dispatch.redis.rates import DUE, RateTimers
from fairlead.dispatch.redis.servers import Admit
from fairlead.domain.fair_share import micros
from fairlead.domain.rules import Rules, ServiceRules
from fairlead.errors import Unavailable

_log = logging.getLogger("fairlead.dispatch")

UNDECLARED = -1
"""The reply of a script if the scope has services whose keys were not passed: another process has newer rules."""


class ScriptRunner:
    def __init__(self, url: str, prefix: str, clock: Callable[[], float] | None, admit: Admit | None) -> None:
        self.client = ScriptClient(url, admit)
        self.ungated = self.client if admit is None else ScriptClient(url)
        """Connects to any server, whatever its identity, for queries of its state, for subscriptions, and for the list
        of scopes. The list belongs to no scope: in a Cluster it may be on a node without any scope, which the database
        never names."""
        self.prefix = prefix
        self.process = secrets.token_hex(8)
        self._rules: Rules | None = None
        self.services: dict[str, set[str]] = {}
        """The services of every scope known to this process."""
        self._url = url
        self._clock = clock
        self._admit = admit
        self._sync: SyncScriptClient | None = None
        self._sync_is_stale = False
        self._sync_lock = threading.Lock()
        self._keys: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.timers: RateTimers | None = None
        self._current: list[str] | None = None

    @property
    def rules(self) -> Rules | None:
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        self._rules = rules
        self._current = None

    def of(self, service: str) -> str:
        """The scope of a service. A service that the rules do not contain has a scope of its own."""
        rules = self._rules
        return ServiceRules(service, limit=0).scope if rules is None else rules.scope_of(service)

    def of_release(self, release: Release | Lease) -> set[str]:
        """The scopes that may hold the lease: the scope that granted it, and the current scope of its service. If the
        service has moved, a rebuild moves the lease too."""
        home = self.of(release.service)
        return {home, release.scope} if release.scope in self.services else {home}

    @property
    def current(self) -> list[str]:
        """The scopes that have services by the current rules. Other scopes may still hold data that has not been
        moved."""
        if self._current is None:
            rules = self._rules
            known = (
                set(self.services) if rules is None else {*filter(rules.is_undeclared, self.services), *rules.scopes}
            )
            self._current = sorted(known)
        return self._current

    def now(self) -> float:
        """The current time in seconds, for measuring intervals between claims."""
        return time.monotonic() if self._clock is None else self._clock()

    @property
    def configured(self) -> list[str]:
        return sorted(self.rules.scopes if self.rules is not None else self.services)

    def key(self, scope: str, name: str) -> str:
        return scope_key(self.prefix, scope, name)

    # -- scopes --------------------------------------------------------------------------------------------------

    def learn(self, scope: str, services: Iterable[str]) -> set[str]:
        """Add services to a scope in this process's list. Returns the services that were not in the list."""
        known = self.services.setdefault(scope, set())
        new = set(services) - known
        if new:
            known |= new
            self._keys.pop(scope, None)
            self._current = None
        return new

    async def register(self, by_scope: Mapping[str, Iterable[str]]) -> None:
        """Add scopes and their services to the set in Redis from which all processes learn them. For each of these
        scopes, all services known to this process are written."""
        scopes = {scope: self.services.get(scope, set()).union(services) for scope, services in by_scope.items()}
        members = [f"{scope}{NUL}{service}" for scope, services in scopes.items() for service in services]
        if members:
            await self.ungated.command("SADD", scopes_key(self.prefix), *members)
        for scope, services in scopes.items():
            self.learn(scope, services)

    async def register_new(self, by_scope: Mapping[str, Set[str]]) -> None:
        new = {scope: services for scope, services in by_scope.items() if services - self.services.get(scope, set())}
        if new:
            await self.register(new)

    async def refresh(self) -> None:
        """Load the scopes and services that other processes have registered. If scopes or services that this process
        knows are missing, Redis has lost them, and they are registered again."""
        listed: dict[str, set[str]] = {}
        for member in await self.ungated.command("SMEMBERS", scopes_key(self.prefix)):
            scope, _, service = member.decode().partition(NUL)
            listed.setdefault(scope, set()).add(service)
        known = {scope: services - listed.get(scope, set()) for scope, services in self.services.items()}
        for scope, services in listed.items():
            self.learn(scope, services)
        if missing := {scope: services for scope, services in known.items() if services}:
            await self.register(missing)

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, script: str, scope: str, args: Sequence[Arg]) -> ScriptCall:
        if scope not in self._keys:
            names = sorted(self.services.get(scope, ()))
            self._keys[scope] = (joined(names), tuple(keys_of(self.prefix, scope, names)))
        names_arg, keys = self._keys[scope]
        now = "" if self._clock is None else micros(self._clock())
        return ScriptCall(script, keys, (now, names_arg, self.process, "1" if self.client.cluster else "0", *args))

    async def run(
        self, script: str, args: Mapping[str, Sequence[Arg]], *, failed: dict[str, Unavailable] | None = None
    ) -> dict[str, Any]:
        """Run a script on these scopes, each with its own arguments, and return the replies by scope.

        If `failed` is given and only some of the scopes fail, their errors are added to `failed` instead of being
        raised, so that one node of a Cluster does not stop the others.
        """
        done: dict[str, Any] = {}
        failures: dict[str, Unavailable] = {}
        while missing := [scope for scope in args if scope not in done and scope not in failures]:
            replies = await self.client.run_each([self.call(script, scope, args[scope]) for scope in missing])
            failures |= {
                scope: each for scope, each in zip(missing, replies, strict=True) if isinstance(each, Unavailable)
            }
            done |= self._declared(missing, replies)
        if broken := {scope: error for scope, error in failures.items() if is_script_failure(error)}:
            await self._mark_lost(broken)
        if failures and (failed is None or not done):
            raise next(iter(failures.values()))
        if self.timers is not None and (at := DUE.get(script)):
            for scope, reply in done.items():
                if len(reply) > at and reply[at]:
                    self.timers.set(scope, reply[at])
        if failed is not None:
            failed |= failures
        return done

    async def _mark_lost(self, broken: Mapping[str, Unavailable]) -> None:
        """Mark the scopes whose script failed as lost. A script fails only on inconsistent data, and may have written
        only some of its changes. The leader rebuilds these scopes; until then they grant nothing."""
        for scope, error in broken.items():
            _log.warning("the data of %s in Redis is inconsistent, and will be rebuilt: %s", scope, error)
            with contextlib.suppress(Unavailable):
                await self.client.command("HSET", self.key(scope, "meta"), "open", "lost")

    def run_sync(self, script: str, args: Mapping[str, Sequence[Arg]]) -> dict[str, Any]:
        """Like `run`, but synchronous, for use in other threads."""
        with self._sync_lock:
            if self._sync is None or self._sync_is_stale:
                if self._sync is not None:
                    self._sync.close()
                self._sync_is_stale = False
                self._sync = SyncScriptClient(self._url, self._admit)
            done: dict[str, Any] = {}
            while missing := [scope for scope in args if scope not in done]:
                replies = self._sync.run([self.call(script, scope, args[scope]) for scope in missing])
                done |= self._declared(missing, replies)
            return done

    def _declared(self, scopes: list[str], replies: list[Any]) -> dict[str, Any]:
        """The replies by scope, without errors. A scope is also left out if it replied that it has services which
        this process did not know. This process then knows them, and the call must be repeated with the keys of all
        services."""
        good = {}
        for scope, reply in zip(scopes, replies, strict=True):
            if isinstance(reply, Unavailable):
                continue
            if reply and reply[0] == UNDECLARED:
                self.learn(scope, names(reply[1]))
            else:
                good[scope] = reply
        return good

    def reconnect(self) -> None:
        self._sync_is_stale = True  # the thread of the heartbeat closes the old client
        self.client.reconnect()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in {self.client, self.ungated}))
        if self._sync is not None:
            self._sync.close()
