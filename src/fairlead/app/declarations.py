"""Everything that an app declares before it is opened: its services, pipelines and priority hook."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from pydantic import ValidationError

from fairlead import config as configuration
from fairlead.app.priority import PriorityHook
from fairlead.backends import store_of
from fairlead.config import Settings
from fairlead.domain.config import (
    AUTO,
    AUTO_KEYS,
    BackoffConfig,
    BreakerConfig,
    Config,
    RegionConfig,
    ServiceConfig,
    ShareConfig,
)
from fairlead.domain.config_schedules import ScheduleConfig
from fairlead.domain.config_types import FUNCTION
from fairlead.domain.costs import CostHook
from fairlead.domain.rate_config import RateConfig
from fairlead.errors import ConfigError
from fairlead.executors.celery import app_loading as celery
from fairlead.executors.function import NO_ARGUMENT, Handler, accepts, imported, named
from fairlead.executors.openai_function import model_handler

H = TypeVar("H", bound=Callable[..., Any])
P = TypeVar("P", bound=PriorityHook)


class ServiceOptions(TypedDict, total=False):
    """The options of `@app.service`, typed for editors and type checkers. They are the keys of `[services.NAME]`;
    `ServiceConfig` has their defaults and checks their values."""

    limit: int | Literal["auto"]
    min: int | None
    max: int | None
    latency_target: float | None
    url: str | None
    function: str | None
    regions: Mapping[str, RegionConfig | Mapping[str, Any]]
    celery: str | None
    celery_queue: str | None
    openai: str | None
    models: Sequence[str]
    aliases: Mapping[str, str]
    retry_streams: bool
    responses: Literal["auto", "pass", "translate"]
    timeout: float
    lease_ttl: float
    hold_after_crash: float | None
    max_attempts: int
    backoff: BackoffConfig | Mapping[str, float] | Sequence[float]
    retry: Literal["auto", "manual"]
    resume: Literal["auto", "manual"]
    order: Literal["fair", "fifo"]
    wait_timeout: float | None
    spill_after: float | None
    breaker: BreakerConfig | Mapping[str, float]
    user_limit: int | None
    rate: RateConfig | Mapping[str, float] | None
    user_rate: RateConfig | Mapping[str, float] | None
    pool: str | None
    shard: str | None
    shards: Mapping[str, ShareConfig | Mapping[str, Any]]
    cost: float | str | CostHook | None
    cost_unit: str | None
    charge: Literal["seconds", "tokens"]
    headers: Mapping[str, str]
    format: Literal["envelope", "raw", "openai"] | None
    body: Mapping[str, Any] | None
    stream: Literal["sse", "text"] | None
    extract: int
    run_in: Literal["thread", "process"]


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule, typed for editors and type checkers. They are the keys of `[schedules.NAME]`;
    `ScheduleConfig` has their defaults and checks their values."""

    cron: str | None
    every: float | None
    timezone: str
    user_id: str
    input_data: Mapping[str, Any]
    priority: str | None
    deadline: float | None
    cost: float | None
    metadata: Mapping[str, Any] | None
    region: str | None
    allowed_regions: Sequence[str] | None
    webhook_url: str | None
    webhook_events: Sequence[str] | None
    missed: Literal["skip", "once", "all"]
    overlap: Literal["allow", "skip", "wait"]


class Declarations:
    """The settings, and the configuration including everything that code has declared."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.config = settings.config
        self.handlers: dict[str, Handler] = {}
        self.priority_hook: PriorityHook | None = None

    def service(
        self, name: str | Callable[..., Any] | None, options: ServiceOptions, decorator: str = "@app.service"
    ) -> Callable[[H], H]:
        """Return a decorator that declares its function as a service. Keys in `fairlead.toml` override `options`.
        Error messages name the `decorator`."""
        if callable(name):
            function = getattr(name, "__name__", "it")
            raise ConfigError([f"@app.service on {function}: the parentheses are missing; write @app.service(limit=1)"])

        def declare(handler: H) -> H:
            service_name = name or handler.__name__
            in_file = self.config.services.get(service_name)
            task = {"celery": getattr(handler, "name", None)} if celery.is_task(handler) else {}
            hook = options.get("cost")
            given = {name: value for name, value in options.items() if name != "cost" or not callable(value)}
            fields = {**task, **given, **(in_file.model_dump(exclude_unset=True) if in_file is not None else {})}
            if in_file is not None and options.get("limit") == AUTO and in_file.limit != AUTO:
                # The file sets a fixed limit, so the bounds that the code gives for "auto" no longer apply.
                fields = {key: value for key, value in fields.items() if key not in AUTO_KEYS}
            if fields.get("celery") is None and not accepts(handler, 1):
                raise ConfigError([f"{decorator} on {handler.__name__}: the function {NO_ARGUMENT}"])
            try:
                service = ServiceConfig.model_validate(fields).handled()
                if callable(hook) and "cost" not in fields:
                    service.reading_cost(cost_hook(hook))
                self._replace(services={**self.config.services, service_name: service})
            except ValidationError as error:
                source = f"{decorator} on {handler.__name__}"
                raise ConfigError(configuration.explained(error, source, service_name, model=ServiceConfig)) from None
            self.handlers[service_name] = handler
            return handler

        return declare

    def model(self, name: str, options: ServiceOptions) -> Callable[[H], H]:
        """Return a decorator that declares its function as a model of the OpenAI front. The service has the model's
        name, with `_` in place of characters that services cannot have."""
        service = re.sub(r"[^a-z0-9_]", "_", name.lower())
        service = f"_{service}" if service[:1].isdigit() else service

        def declare(function: H) -> H:
            if not accepts(function, 1) and not accepts(function, 2):
                wanted = "cannot be called with the messages: write def NAME(messages) or def NAME(messages, call)"
                raise ConfigError([f"@app.model on {function.__name__}: the function {wanted}"])
            models = [*options.get("models", ()), name]
            declare_service = self.service(service[:63], {**options, "models": models}, "@app.model")
            declare_service(model_handler(function, name))
            return function

        return declare

    def pipeline(self, name: str, steps: Sequence[str]) -> None:
        try:
            self._replace(pipelines={**self.config.pipelines, name: list(steps)})
        except ValidationError as error:
            raise ConfigError(configuration.explained(error, f"app.pipeline({name!r})", "pipelines")) from None

    def schedule(self, name: str, feature_name: str, options: ScheduleOptions, source: str = "app.schedule") -> None:
        """Declare a schedule. Keys in `fairlead.toml` override `options`. Error messages name the `source`."""
        in_file = self.settings.config.schedules.get(name)
        fields: dict[str, Any] = {"feature_name": feature_name, **options}
        if in_file is not None:
            overrides = in_file.model_dump(exclude_unset=True)
            if {"cron", "every"} & overrides.keys():
                fields = {key: value for key, value in fields.items() if key not in ("cron", "every")}
            fields |= overrides
        try:
            self._replace(schedules={**self.config.schedules, name: ScheduleConfig.model_validate(fields)})
        except ValidationError as error:
            problems = configuration.explained(error, f"{source}({name!r})", f"schedules.{name}", model=ScheduleConfig)
            raise ConfigError(problems) from None

    def cron(self, expression: str, name: str | None, options: ScheduleOptions) -> Callable[[H], H]:
        """Return a decorator that declares a schedule for its function, and the service if it is not declared yet."""

        def declare(handler: H) -> H:
            service = next((each for each, known in self.handlers.items() if known is handler), None)
            if service is None:
                service = handler.__name__
                self.service(None, {"limit": 1}, "@app.cron")(handler)
            self.schedule(name or service, service, {**options, "cron": expression}, "@app.cron")
            return handler

        return declare

    def _replace(self, **sections: Any) -> None:
        self.config = Config.model_validate({**dict(self.config), **sections})

    def problems(self) -> list[str]:
        """Every error in the configuration, each with its location and the allowed values."""
        source = self.settings.source or "the configuration"
        problems = configuration.problems_of(self.config, source)
        problems += _problems(lambda url: store_of(url, time.time), self.settings.database_url)
        problems += self.settings.problems()
        for name, steps in self.config.pipelines.items():
            if idle := sorted(self.config.turns_only.intersection(steps)):
                problems.append(
                    f"{source}: pipelines.{name}: nothing executes {', '.join(idle)}; give it a url, a function, "
                    "regions or celery, or a handler with @app.service"
                )
        for name, service in self.config.services.items():
            if isinstance(service.cost, str) and re.match(FUNCTION, service.cost):
                problems += [f"{source}: services.{name}.{each}" for each in self._cost_problems(service)]
            if service.function:
                broken = _problems(imported, service.function)
                problems += [f"{source}: services.{name}.{problem}" for problem in broken]
            if (service.remote or service.function) and name in self.handlers and not self._is_celery(name):
                conflict = "it has a handler in code; remove url and function, or rename one of them"
                problems.append(f"{source}: services.{name}: {conflict}")
        problems += [f"{source}: {problem}" for problem in celery.problems(self.config, self.handlers)]
        return problems

    def _cost_problems(self, service: ServiceConfig) -> Sequence[str]:
        """Import the cost hook that the configuration names; returns why that is not possible."""
        try:
            service.reading_cost(cost_hook(str(service.cost)))
        except ConfigError as error:
            return error.problems
        return ()

    def _is_celery(self, name: str) -> bool:
        """Whether the service's handler is a Celery task."""
        return self.config.services[name].celery is not None and celery.is_task(self.handlers[name])


class DeclarationMethods:
    """The methods of `Fairlead` that declare services, models, pipelines and priorities."""

    _declarations: Declarations

    def service(self, name: str | None = None, **options: Unpack[ServiceOptions]) -> Callable[[H], H]:
        """Declare a function as a service. `options` are the keys of `[services.NAME]` (docs/configuration.md). Keys in
        `fairlead.toml` override the options, so that operators can change a limit without changing code."""
        return self._declarations.service(name, options)

    def model(self, name: str, **options: Unpack[ServiceOptions]) -> Callable[[H], H]:
        """Declare a function as a model of the OpenAI front (docs/openai.md). It gets the messages, and the `Call` if
        it has a second parameter, and returns or yields text."""
        return self._declarations.model(name, options)

    def pipeline(self, name: str, steps: Sequence[str]) -> None:
        """Declare a pipeline: a named list of services, as `[pipelines]` in the configuration does."""
        self._declarations.pipeline(name, steps)

    def schedule(self, name: str, feature_name: str, **options: Unpack[ScheduleOptions]) -> None:
        """Declare a recurring job, as `[schedules.NAME]` in the configuration does (docs/schedules.md). Keys in
        `fairlead.toml` override the options."""
        self._declarations.schedule(name, feature_name, options)

    def cron(self, expression: str, name: str | None = None, **options: Unpack[ScheduleOptions]) -> Callable[[H], H]:
        """Call a function by a cron expression, such as `@app.cron("*/5 * * * *")`. Put it above `@app.service`; if
        there is none, the function becomes a service with `limit=1`."""
        return self._declarations.cron(expression, name, options)

    def priority(self, hook: P) -> P:
        """Declare the function that sets users' priorities (docs/priority.md). It receives a `user_id` and returns a
        priority, a mapping with `priority`, `weight`, `plan` or `group`, or None to use the config and the priority
        service."""
        self._declarations.priority_hook = hook
        return hook

    def check(self) -> list[str]:
        """Every error in the configuration, each with its location and the allowed values."""
        return self._declarations.problems()


def cost_hook(hook: str | CostHook) -> CostHook:
    """The function that computes costs, or the one that is called `module:name`."""
    function = named(hook, "cost") if isinstance(hook, str) else hook
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigError([f"cost: {hook!r} must be a function that is not async and takes the input"])
    found: CostHook = function
    return found


def _problems(read: Callable[[str], object], text: str) -> Sequence[str]:
    try:
        read(text)
    except ConfigError as error:
        return error.problems
    return ()
