"""Stand-ins for two image models. Like real ones they handle one request at a time, and fail if there are two."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass
class Model:
    name: str
    seconds: float
    busy: bool = False

    async def generate(self, prompt: str) -> str:
        if self.busy:
            raise RuntimeError(f"{self.name} is out of memory: it was given two prompts at once")
        if prompt == "nothing":
            raise ValueError("there is nothing to draw")
        self.busy = True
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.busy = False
        return f"{self.name}-{prompt.replace(' ', '-')}.png"
