"""The endpoints as the processes that accept jobs know them, and those of the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from fairlead.domain.config_webhooks import WebhooksConfig
from fairlead.domain.webhooks import Endpoint, check_secret
from fairlead.errors import ConfigError, Unavailable
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import Store
from fairlead.store.webhooks import DeclareEndpoints

READ_EVERY = 1.0
FRESH_FOR = 3.0
"""Seconds for which a reading is used. A process with a node reads in the background, so that no submit waits."""
CONFIGURED = "config_"
"""The ids of the configuration's endpoints begin with this."""


class EndpointUsers:
    """Which users have endpoints. A job that is submitted while its user has none never looks for one."""

    def __init__(self, read: Callable[[], Store], monotonic: Callable[[], float]) -> None:
        self._read = read
        self._monotonic = monotonic
        self._users: frozenset[str | None] = frozenset()
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        began = self._monotonic()
        self._users = await self._read().webhook_users()
        self._read_at = began

    @property
    def fresh(self) -> bool:
        return self._read_at is not None and self._monotonic() - self._read_at < FRESH_FOR

    async def current(self) -> frozenset[str | None]:
        """The users with endpoints; None among them stands for all users. The last reading is used if the database
        does not answer: the submit itself then fails."""
        if not self.fresh:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.get_running_loop().create_task(self._try_to_refresh())
            await asyncio.shield(self._reading)  # one reading for all callers that wait
        return self._users

    async def _try_to_refresh(self) -> None:
        with contextlib.suppress(Unavailable):
            await self.refresh()


class EndpointUsersLoop:
    """Keeps `EndpointUsers` fresh."""

    name = "webhook_endpoints"

    def __init__(self, users: EndpointUsers) -> None:
        self._users = users

    async def tick(self, now: float) -> float:
        await self._users.refresh()
        return now + READ_EVERY


def configured(config: WebhooksConfig) -> tuple[Endpoint, ...]:
    """The endpoints of the configuration."""
    return tuple(
        Endpoint(
            CONFIGURED + name,
            endpoint.url,
            endpoint.user,
            tuple(endpoint.events),
            name=name,
            secrets=((_secret(name, endpoint.secret), None),),
        )
        for name, endpoint in config.endpoints.items()
    )


def _secret(name: str, value: str) -> str:
    variable = value.removeprefix("env:")
    if variable == value:
        return value
    try:
        return check_secret(os.environ[variable].strip())
    except KeyError:
        raise ConfigError([f"webhooks.{name}.secret: the environment variable {variable} is not set"]) from None
    except ValueError as error:
        raise ConfigError([f"webhooks.{name}.secret: the environment variable {variable} {error}"]) from None


async def declare(config: WebhooksConfig, store: Store, group_commit: GroupCommit) -> None:
    """Write the endpoints of the configuration to the database, if they differ from what is there."""
    wanted = configured(config)
    stored = [endpoint for endpoint in await store.endpoints() if endpoint.name is not None]
    if sorted(map(_identity, wanted)) != sorted(map(_identity, stored)):
        await group_commit.write(DeclareEndpoints(wanted))


def _identity(endpoint: Endpoint) -> str:
    return repr((endpoint.id, endpoint.url, endpoint.user_id, endpoint.events, endpoint.secrets))
