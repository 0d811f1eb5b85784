"""The gateway with the OpenAI front, a fake upstream behind it, and unmodified clients in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai

from fairlead import Config, Fairlead
from fairlead.config import Settings
from fairlead.engine.roles import Roles
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import served
from tests.openai_upstream import Upstream, running_upstream

ADMIN = "the admin key of the environment"
HELLO: Any = [{"role": "user", "content": "Hello"}]
PROMPT = 2
"""The estimated tokens of `HELLO`."""


@dataclass
class Front:
    app: Fairlead
    upstream: Upstream
    base: str

    @property
    def url(self) -> str:
        return f"{self.base}/v1"

    def client(self, key: str = "any", **options: Any) -> openai.AsyncOpenAI:
        options.setdefault("max_retries", 0)
        return openai.AsyncOpenAI(base_url=self.url, api_key=key, **options)

    def sync_client(self, key: str = "any", **options: Any) -> openai.OpenAI:
        options.setdefault("max_retries", 0)
        return openai.OpenAI(base_url=self.url, api_key=key, **options)

    def http(self, **options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, timeout=20, **options)


@asynccontextmanager
async def open_front(
    folder: Path,
    *models: str,
    service: dict[str, Any] | None = None,
    admin_key: str | None = None,
    engines: dict[str, str] | None = None,
    **sections: Any,
) -> AsyncIterator[Front]:
    """A gateway whose service `llama` is a fake upstream with these models, on SQLite or these engines."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(running_upstream(*models))
        table = {"limit": 4, "openai": upstream.url, "backoff": [0.01], **(service or {})}
        services = {"llama": table, **sections.pop("services", {})}
        config = Config.model_validate({"services": services, **sections})
        urls = engines or {"database_url": f"sqlite:///{folder}/fairlead.db"}
        app = Fairlead(Settings(config, admin_key=admin_key, **urls))
        await stack.enter_async_context(app.running())
        port = await stack.enter_async_context(served(create_gateway(app)))
        yield Front(app, upstream, f"http://127.0.0.1:{port}")


async def disconnect_after(client: Any, text: str) -> None:
    """Ask as ada for a stream, and disconnect as soon as it has this text."""
    stream = await client.chat.completions.create(model="llama", messages=HELLO, user="ada", stream=True)
    received = ""
    async for chunk in stream:
        received += chunk.choices[0].delta.content or ""
        if received == text:
            break
    await stream.close()


@asynccontextmanager
async def second_gateway(front: Front) -> AsyncIterator[Front]:
    """Another gateway process on the same engines, here in the same Python process."""
    app = Fairlead(front.app._runtime.settings)
    async with app.running(Roles(worker=False, manager=False)), served(create_gateway(app)) as port:
        yield Front(app, front.upstream, f"http://127.0.0.1:{port}")
