"""The layers below the gateway, echoing a POST: the bare server, or the bare framework on it.

python -m bench.echo PORT server|framework
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI


async def echo(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    body = message["body"]
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def framework() -> FastAPI:
    app = FastAPI()

    @app.post("/", status_code=202)
    async def echo_json(body: dict[str, Any]) -> dict[str, Any]:
        return body

    return app


if __name__ == "__main__":
    app = framework() if sys.argv[2] == "framework" else echo
    uvicorn.run(
        app, port=int(sys.argv[1]), lifespan="off", log_config=None, access_log=False, server_header=False, ws="none"
    )
