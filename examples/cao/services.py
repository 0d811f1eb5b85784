"""The four AI services of the sample project: HTTP servers that simulate their work.

Minutes on a GPU are seconds here; `SCALE=0.1` makes them tenths. Each service counts its calls and refuses those above
its limit with 503, as a real one would: `GET /stats` shows whether that ever happened.

    python examples/cao/services.py          # ports 9001 to 9004, as in fairlead.toml
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Model:
    """A simulated model: its concurrency limit, the duration of a call, and its response."""

    name: str
    port: int
    limit: int
    fastest_s: float
    slowest_s: float
    answer: Callable[[str], dict[str, Any]]


MODELS = (
    Model("prompt_enhancer", 9001, 5, 1, 2, lambda text: {"enhanced_prompt": f"{text}, in fine detail, golden hour"}),
    Model("fast_chat_llm", 9002, 4, 2, 3, lambda text: {"generated_text": f"Once there was {text}."}),
    Model("image_gen", 9003, 1, 5, 6, lambda text: {"image_url": f"https://images.example/{slug(text)}.png"}),
    Model("model_3d_gen", 9004, 1, 6, 7, lambda text: {"model_url": f"https://models.example/{slug(text)}.glb"}),
)


def slug(text: str) -> str:
    return "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in text.lower()).split())[:40] or "untitled"


class Service:
    """One model behind `POST /v1/execute`."""

    def __init__(self, model: Model, scale: float) -> None:
        self.model = model
        self._scale = scale
        self._in_flight = self._highest = self._done = self._violations = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/v1/execute", self.execute), web.get("/stats", self.stats)])
        return app

    async def execute(self, request: web.Request) -> web.Response:
        prompt = _prompt(await request.json())
        if prompt is None:
            return web.json_response({"error": "payload.params.prompt must be text"}, status=422)
        self._in_flight += 1
        self._highest = max(self._highest, self._in_flight)
        try:
            if self._in_flight > self.model.limit:
                self._violations += 1
                return web.json_response({"error": "overloaded"}, status=503, headers={"Retry-After": "1"})
            seconds = random.uniform(self.model.fastest_s, self.model.slowest_s) * self._scale
            await asyncio.sleep(seconds)
            self._done += 1
            metrics = {"model_version": "v2.1", "processing_time_ms": round(seconds * 1000)}
            return web.json_response({"data": self.model.answer(prompt), "metrics": metrics})
        finally:
            self._in_flight -= 1

    async def stats(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "service": self.model.name,
                "limit": self.model.limit,
                "in_flight": self._in_flight,
                "highest_in_flight": self._highest,
                "completed": self._done,
                "violations": self._violations,
            }
        )


def _prompt(body: dict[str, Any]) -> str | None:
    """The enhanced prompt of an earlier step, or the user's own."""
    payload = body.get("payload", {})
    enhanced = payload.get("context", {}).get("step_0_prompt_enhancer", {}).get("data", {})
    prompt = enhanced.get("enhanced_prompt", payload.get("params", {}).get("prompt"))
    return prompt if isinstance(prompt, str) else None


class Services:
    """All four services, each on its own port. `async with` starts and stops them; `urls` has their URLs."""

    def __init__(self, scale: float = 1.0, *, free_ports: bool = False) -> None:
        self._scale = scale
        self._free_ports = free_ports
        self._runners: list[web.AppRunner] = []
        self.urls: dict[str, str] = {}

    async def __aenter__(self) -> Services:
        for model in MODELS:
            # When a client disconnects, its work stops too, so that the counts stay correct.
            runner = web.AppRunner(Service(model, self._scale).app(), access_log=None, handler_cancellation=True)
            self._runners.append(runner)
            await runner.setup()
            await web.TCPSite(runner, HOST, 0 if self._free_ports else model.port).start()
            self.urls[model.name] = f"http://{HOST}:{runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for runner in self._runners:
            await runner.cleanup()


async def main() -> None:
    async with Services(scale_from_environment()) as services:
        for name, url in services.urls.items():
            print(f"{name:<16} {url}/v1/execute  {url}/stats", flush=True)
        await asyncio.Event().wait()


def scale_from_environment() -> float:
    return float(os.environ.get("SCALE", "1"))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
