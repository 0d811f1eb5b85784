"""Helpers for tests of OpenAI's files and batches, with its unmodified client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
from openai.types import Batch

from tests.openai_upstream import PATIENCE_S

CHAT = "/v1/chat/completions"
ENDED = ("failed", "completed", "expired", "cancelled")
NO_JSON = b"{this is not JSON\n"


def line(custom_id: Any, text: str = "Hello", **fields: Any) -> bytes:
    """A line of an input file. `body` adds fields to its body."""
    body = {"model": "llama", "messages": [{"role": "user", "content": text}], **fields.pop("body", {})}
    value = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **fields}
    return json.dumps({name: each for name, each in value.items() if each is not ...}).encode() + b"\n"


async def upload(client: openai.AsyncOpenAI, content: bytes) -> str:
    return (await client.files.create(file=("requests.jsonl", content), purpose="batch")).id


async def create(client: openai.AsyncOpenAI, content: bytes, window: Any = "24h", **options: Any) -> Batch:
    file_id = await upload(client, content)
    return await client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window=window, **options)


async def ended(client: openai.AsyncOpenAI, batch_id: str, *statuses: str) -> Batch:
    """Poll until the batch has ended, or has one of these statuses."""
    async with asyncio.timeout(PATIENCE_S):
        while (batch := await client.batches.retrieve(batch_id)).status not in (statuses or ENDED):
            await asyncio.sleep(0.05)
    return batch


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """The lines of an output file, by custom_id."""
    if file_id is None:
        return {}
    values = [json.loads(each) for each in (await client.files.content(file_id)).text.splitlines()]
    assert len({value["custom_id"] for value in values}) == len(values)
    return {value["custom_id"]: value for value in values}
