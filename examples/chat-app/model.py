"""The model: a function that takes messages and yields text. At most one answer is generated at a time.

Behind a real model server, this file is one line of configuration: openai = "http://vllm:8000/v1".
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from fairlead import Fairlead

SECONDS_PER_WORD = float(os.environ.get("SECONDS_PER_WORD", "0.3"))
app = Fairlead()


@app.model("parrot", limit=1)
async def parrot(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    for word in ("You", "said:", *messages[-1]["content"].split()):
        await asyncio.sleep(SECONDS_PER_WORD)
        yield f"{word} "
