"""Submits go straight to their functions: the way through FastAPI costs more than all other layers together.

Every layer that decides something is outside of it, and both ways end in the same function: see
`test_gateway_express.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.gateway import jobs

WAYS: dict[str, Callable[[Request], Awaitable[Response]]] = {
    jobs.JOBS: jobs.submit_job,
    jobs.BULK: jobs.submit_jobs,
}
"""What a POST to these paths is answered by."""


class Express:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in WAYS:
            # Errors go up to the frame, which answers with the same problems as FastAPI's handlers do.
            response = await WAYS[scope["path"]](Request(scope, receive))
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)
