"""The chat application: a page, and a route that passes the model's words on as they arrive.

It uses OpenAI's client as any application does. Only the base URL and two headers are Fairlead's: who asks, and that
the position in the queue is wanted as chunks of the stream.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse, StreamingResponse
from openai import APIError, AsyncOpenAI
from pydantic import BaseModel

site = FastAPI()
client = AsyncOpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY


class Question(BaseModel):
    user: str
    text: str


@site.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("index.html"))


@site.post("/chat")
async def chat(question: Question) -> StreamingResponse:
    return StreamingResponse(answer(question), media_type="application/x-ndjson")


async def answer(question: Question) -> AsyncIterator[str]:
    """One JSON object per line: the position while the question waits, then the words of the answer."""
    try:
        stream = await client.chat.completions.create(
            model="parrot",
            messages=[{"role": "user", "content": question.text}],
            stream=True,
            extra_headers={"X-Fairlead-User": question.user, "X-Fairlead-Queue": "chunks"},
        )
        async with stream:  # a browser that closes its page closes the stream, which cancels the request
            async for chunk in stream:
                waiting = (chunk.model_extra or {}).get("fairlead")
                if waiting is not None:
                    yield line(position=waiting.get("position"))
                elif chunk.choices and chunk.choices[0].delta.content:
                    yield line(text=chunk.choices[0].delta.content)
    except APIError as error:
        yield line(error=error.message)


def line(**fields: object) -> str:
    return json.dumps(fields) + "\n"
