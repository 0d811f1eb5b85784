"""`app.models`: the models that clients of the OpenAI front can ask for, and the service that serves each of them.

A service names its models in the configuration. Otherwise its upstream is asked for them, and asked again every minute.
A service whose upstream has never answered may serve any model: its jobs wait until the upstream is back, and
it is asked again every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlead.app.runtime import Runtime
from fairlead.domain.config import Config, ServiceConfig
from fairlead.errors import Unavailable, UnknownModel
from fairlead.pacing import CachedQuery, DutyCycle

if TYPE_CHECKING:
    from fairlead.dispatch.port import ServiceSnapshot
    from fairlead.executors.openai import Upstream

log = logging.getLogger("fairlead.models")

REFRESH = DutyCycle(share=0.1, every=60.0, longest=300.0)
NEW_AFTER_S = 5.0
"""An unknown model makes the upstreams be asked again if the last answer is older than this."""
ASK_AGAIN_S, ASK_AGAIN_MOST_S = 2.0, 15.0
"""The first and the longest pause before an upstream that has never answered is asked again."""
MAX_NAMED = 20
REST_S = 30.0
"""How long a service whose upstream failed gets no requests for models that other services serve too. Then one request
finds out whether it works again."""
RECENT_S = 1.0
"""How long the names of all services are used without looking at the services again."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model by the name that clients use. `services` are the services that serve it."""

    id: str
    services: tuple[str, ...]
    created: int = 0
    owned_by: str = "fairlead"

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "object": "model", "created": self.created, "owned_by": self.owned_by}


class _ListedModels:
    """The models of one service whose upstream lists them. `models` is None until the upstream has answered once."""

    def __init__(self, name: str, config: ServiceConfig) -> None:
        self._name = name
        self._config = config
        self._upstream: Upstream | None = None
        self.models: list[dict[str, Any]] | None = None
        self._query = CachedQuery(self._ask, REFRESH)
        self._asking_again: asyncio.Task[None] | None = None

    async def read(self, *, since: float | None = None) -> list[dict[str, Any]] | None:
        """The models that the upstream listed last. Waits only for the first answer, or, if the upstream has answered
        before, for one that was asked for at `since` or later."""
        if since is not None and self.models is not None:
            await self._query.since(since)
        elif self._query.last() is None:
            await self._query.recent()
        return self.models

    async def _ask(self) -> bool:
        """Ask the upstream, in each of its regions. Keeps the last answer if it does not answer now."""
        # Imported here: only services that speak the protocol need the HTTP client.
        from fairlead.executors.openai import Upstream, list_models

        if self._upstream is None:
            self._upstream = Upstream(self._config)
        upstream = self._upstream
        lists = await asyncio.gather(*(list_models(upstream, region) for region in upstream.regions))
        known = [models for models in lists if not isinstance(models, str)]
        if known:
            self.models = [model for models in known for model in models]
        elif self.models is None and self._asking_again is None:
            log.warning("the models of %s are not known, and are asked for again: %s", self._name, lists[0])
            self._asking_again = asyncio.create_task(self._ask_again())
        else:
            log.debug("the models of %s cannot be listed: %s", self._name, lists[0])
        return True

    async def _ask_again(self) -> None:
        """Ask until the first answer. Later answers are refreshed when they are read."""
        pause = ASK_AGAIN_S
        while self.models is None:
            await asyncio.sleep(pause)
            await self._query.fresh()
            pause = min(ASK_AGAIN_MOST_S, 1.5 * pause)

    async def close(self) -> None:
        if self._asking_again is not None:
            self._asking_again.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._asking_again
        await self._query.close()
        if self._upstream is not None:
            await self._upstream.close()


class ModelCatalog:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._listed: dict[str, _ListedModels] = {}
        self._turn = 0
        self._resting: dict[str, float] = {}
        self._recent: dict[str, Model] = {}
        self._recent_until = 0.0

    async def all(self) -> list[Model]:
        """The models of all services, by name."""
        return sorted((await self._models()).values(), key=lambda model: model.id)

    async def service_for(self, name: str | None) -> str:
        """The service for a request: of those that serve the model, the one with the shortest expected wait. Without a
        model, the only service there is. Raises UnknownModel."""
        if name is None:
            if len(services := self._services()) == 1:
                return next(iter(services))
            raise UnknownModel("model is missing; " + known_models(await self.all()), pointer="/model")
        models = self._recent
        if name not in models or asyncio.get_running_loop().time() >= self._recent_until:
            models = await self._models()
        if name not in models:
            models = await self._models(since=asyncio.get_running_loop().time() - NEW_AFTER_S)
        if name in models:
            return await self._least_busy(models[name].services)
        unlisted = tuple(service for service, listed in self._listed.items() if listed.models is None)
        if unlisted:
            return await self._least_busy(unlisted)
        raise UnknownModel(
            f"there is no model {name[:100]!r}; {known_models(sorted(models.values(), key=lambda model: model.id))}",
            pointer="/model",
        )

    def note_end(self, service: str, *, failed: bool) -> None:
        """Take note of the end of a request. `failed`: the upstream of the service did not answer."""
        if failed:
            self._resting[service] = asyncio.get_running_loop().time() + REST_S
        elif self._resting:
            self._resting.pop(service, None)

    async def close(self) -> None:
        for listed in self._listed.values():
            await listed.close()
        self._listed.clear()

    def _services(self) -> dict[str, ServiceConfig]:
        config: Config = self._runtime.config
        return {name: service for name, service in config.services.items() if service.speaks_openai or service.models}

    async def _models(self, *, since: float | None = None) -> dict[str, Model]:
        services = self._services()
        named = await asyncio.gather(*(self._named(name, service, since) for name, service in services.items()))
        models: dict[str, Model] = {}
        for service, entries in zip(services, named, strict=True):
            for entry in entries:
                model = models.get(entry["id"]) or _model(entry)
                if service not in model.services:
                    models[model.id] = Model(model.id, (*model.services, service), model.created, model.owned_by)
        self._recent, self._recent_until = models, asyncio.get_running_loop().time() + RECENT_S
        return models

    async def _named(self, name: str, service: ServiceConfig, since: float | None) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = [{"id": model} for model in (*service.models, *service.aliases)]
        if service.models or not service.speaks_openai:
            return entries
        listed = self._listed.get(name)
        if listed is None:
            listed = self._listed[name] = _ListedModels(name, service)
        return entries + (await listed.read(since=since) or [])

    async def _least_busy(self, services: Sequence[str]) -> str:
        if len(services) == 1:
            return services[0]
        now = asyncio.get_running_loop().time()
        working = [service for service in services if self._resting.get(service, now) <= now]
        service = await self._shortest(working or services)
        if service in self._resting:
            self._resting[service] = now + REST_S  # until this request has ended
        return service

    async def _shortest(self, services: Sequence[str]) -> str:
        """The service with the shortest expected wait."""
        self._turn += 1  # equal services take turns
        turn = self._turn % len(services)
        rotated = [*services[turn:], *services[:turn]]
        try:
            queues = await self._runtime.observer.queues(services)
        except Unavailable:
            return rotated[0]
        return min(rotated, key=partial(_expected_wait, queues))


def _expected_wait(queues: Any, service: str) -> float:
    """The work in front of a new job of this service, in seconds per slot. Paused services come last."""
    rules = queues.rules.services.get(service)
    if rules is None or rules.paused:
        return float("inf")
    snapshots = queues.services.get(service, ())
    jobs = sum(each.in_use + sum(each.waiting.values()) for each in snapshots)
    mean = mean_duration(snapshots)
    return float(jobs / rules.limit * (1.0 if mean is None else mean))


def mean_duration(snapshots: Sequence[ServiceSnapshot]) -> float | None:
    """The mean time of the calls of a service in seconds; None if it is not known."""
    means = [each.mean_duration for each in snapshots if each.mean_duration is not None]
    return sum(means) / len(means) if means else None


def _model(entry: dict[str, Any]) -> Model:
    created, owner = entry.get("created"), entry.get("owned_by")
    return Model(
        entry["id"],
        (),
        created if isinstance(created, int) and not isinstance(created, bool) else 0,
        owner if isinstance(owner, str) else "fairlead",
    )


def known_models(models: Sequence[Model]) -> str:
    if not models:
        return "none is known: no service has models, and no upstream lists any"
    more = f" and {len(models) - MAX_NAMED} more" if len(models) > MAX_NAMED else ""
    return f"known are: {', '.join(model.id for model in models[:MAX_NAMED])}{more}"
