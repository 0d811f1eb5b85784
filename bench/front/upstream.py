"""A fake server with OpenAI's protocol. It answers at once; the tokens of a stream are a short pause apart.

python -m bench.front.upstream PORT
"""

from __future__ import annotations

import asyncio
import sys

import orjson
import uvloop
from aiohttp import web

MODEL = "bench"
TOKEN = "token "
PAUSE_S = 0.02
TOKENS = 50
"""Tokens of a stream whose request has no `max_tokens`."""
BASE = {"id": "chatcmpl-bench", "created": 1_700_000_000, "model": MODEL}


def chunk(delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + orjson.dumps({**BASE, "object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}


NEXT = chunk({"content": TOKEN}, None)
LAST = chunk({}, "stop") + b"data: [DONE]\n\n"
MESSAGE = {"role": "assistant", "content": TOKEN}
ANSWER = orjson.dumps(
    {
        **BASE,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
        "usage": usage(1),
    }
)
LIST = orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "bench"}]})


async def chat(request: web.Request) -> web.StreamResponse:
    asked = orjson.loads(await request.read())
    if not asked.get("stream"):
        return web.Response(body=ANSWER, content_type="application/json")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(asked.get("max_tokens", TOKENS)):
        if number:
            await asyncio.sleep(PAUSE_S)
        await response.write(NEXT)
    await response.write(LAST)
    return response


async def models(request: web.Request) -> web.Response:
    return web.Response(body=LIST, content_type="application/json")


async def about(request: web.Request) -> web.Response:
    """What SMG asks a server for before it sends requests."""
    return web.json_response({"model_path": MODEL, "is_generation": True})


def main() -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    for path in ("/health", "/get_model_info", "/get_server_info"):
        app.router.add_get(path, about)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None, loop=uvloop.new_event_loop())


if __name__ == "__main__":
    main()
