"""The gateway with the Replicate front, services behind it, and unmodified clients in front of it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from fairlead import Call, Config, Fairlead, Permanent
from fairlead.config import Settings
from fairlead.gateway.app import create_gateway
from tests.integration.gateway_site import served
from tests.integration.talker import Talker

with warnings.catch_warnings():
    # It uses the old interface of pydantic, which newer versions of Python warn about.
    warnings.simplefilter("ignore")
    import replicate

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 20
MODELS = {"acme/flux": "draw", "acme/llama": "talk", "acme/old:39ed52f2": "draw"}


@contextmanager
def client_of(base: str, token: str = "any", **options: Any) -> Iterator[replicate.Client]:
    """An unmodified client, which polls often."""
    client = replicate.Client(api_token=token, base_url=f"{base}/replicate", **options)
    client.poll_interval = 0.05
    try:
        yield client
    finally:
        client._client.close()
        if client._Client__async_client is not None:
            raise AssertionError("use `async_client_of`")


@asynccontextmanager
async def async_client_of(base: str, token: str = "any", **options: Any) -> AsyncIterator[replicate.Client]:
    client = replicate.Client(api_token=token, base_url=f"{base}/replicate", **options)
    client.poll_interval = 0.05
    try:
        yield client
    finally:
        await client._async_client.aclose()


@dataclass
class Site:
    app: Fairlead
    talker: Talker
    base: str
    client: replicate.Client
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{self.base}/replicate/v1"

    def http(self, key: str | None = None) -> httpx2.AsyncClient:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=30)


def declare(site: Site) -> None:
    @site.app.service("draw", limit=4)
    async def draw(call: Call) -> Any:
        """Returns a picture; for an input picture, that one with something added."""
        given = await call.read(call.params["image"]) if "image" in call.params else PNG
        return await call.save("picture.png", given + call.params.get("prompt", "").encode())

    @site.app.service("wait", limit=1)
    async def wait(call: Call) -> dict[str, Any]:
        call.progress(0.76, "step 38")
        site.entered.set()
        await site.gate.wait()
        return {"n": call.params.get("n")}

    @site.app.service("broken", limit=1)
    async def broken(call: Call) -> None:
        raise Permanent("this input will never work")

    @site.app.service("many", limit=1)
    async def many(call: Call) -> list[str]:
        return ["one\ntwo", "three"]


@asynccontextmanager
async def open_site(engine: dict[str, str], **settings: Any) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        config = {
            "fronts": {"replicate": {"models": MODELS}},
            "webhooks": {"allow_http": True, "allow_private": True},
            "artifacts": {"url": stack.enter_context(TemporaryDirectory())},
            **settings,
        }
        app = Fairlead(Settings(Config.model_validate(config), **engine))
        site = Site(app, Talker(app, max_attempts=2), "", None)
        declare(site)
        await stack.enter_async_context(app.running())
        port = await stack.enter_async_context(served(create_gateway(app)))
        site.base = f"http://127.0.0.1:{port}"
        site.client = await stack.enter_async_context(async_client_of(site.base))
        yield site
