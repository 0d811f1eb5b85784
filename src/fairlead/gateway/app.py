"""The gateway, assembled.

From the outside in: CORS (if any origin is allowed) · `Frame` (request id, log, headers, last resort) · `Guard` (who
may ask) · `BodyLimit` · `Express` (submits) · FastAPI with everything else. All layers are plain ASGI: a layer
that turns requests and answers into objects and back costs more than submitting a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from fairlead.errors import RequestError, Unavailable
from fairlead.gateway import (
    admin,
    batches,
    dead,
    doctor,
    health,
    inference,
    jobs,
    keys,
    metrics,
    operators,
    sockets,
    turns,
    workers,
)
from fairlead.gateway.auth import Guard
from fairlead.gateway.dashboard import pages, session, socket
from fairlead.gateway.dashboard.channel import Board
from fairlead.gateway.express import Express
from fairlead.gateway.frame import Frame
from fairlead.gateway.limits import BodyLimit
from fairlead.gateway.openapi import document
from fairlead.gateway.problems import (
    NotReady,
    handle_error,
    handle_validation_error,
    of_http_exception,
    problem_response,
)
from fairlead.gateway.rates import SubmitRate
from fairlead.gateway.turn_callers import Callers
from fairlead.version import __version__

if TYPE_CHECKING:
    from fairlead.app import Fairlead


ROUTERS = (
    jobs.router,
    batches.router,
    turns.router,
    inference.router,
    pages.router,
    session.router,
    socket.router,  # before the sockets of jobs, whose paths would have room for it
    sockets.router,
    admin.router,
    dead.router,
    operators.router,
    workers.router,
    doctor.router,
    keys.router,
    metrics.router,
    health.router,
)


class Parts:
    """What routes find as `request.app.state`. Starlette's own kind of it calls a function for each look."""

    guard: Guard

    def __init__(self, fairlead: Fairlead) -> None:
        self.fairlead = fairlead
        self.metrics = metrics.Metrics(fairlead)
        self.turn_callers = Callers(fairlead)
        self.board = Board(fairlead)
        per_minute = fairlead.config.server.submits_per_minute
        self.submit_rate = SubmitRate(per_minute) if per_minute else None


class Gateway(FastAPI):
    state: Parts  # type: ignore[assignment]

    def __init__(self, fairlead: Fairlead, **options: Any) -> None:
        super().__init__(**options)
        self.state = Parts(fairlead)

    def build_middleware_stack(self) -> ASGIApp:
        fairlead = self.state.fairlead
        server = fairlead.config.server
        app: ASGIApp = Express(super().build_middleware_stack())
        app = BodyLimit(app, max_body=server.max_body, larger={batches.BATCHES: server.max_batch_body})
        app = self.state.guard = Guard(
            app, fairlead=fairlead, routes=self.routes, host=server.host, allowed_origins=server.allowed_origins
        )
        app = Frame(app)
        return _with_cors(app, server.allowed_origins) if server.allowed_origins else app

    def openapi(self) -> dict[str, Any]:
        return document(self)


def create_gateway(app: Fairlead) -> FastAPI:
    """HTTP for this app. It neither opens nor runs it: `fairlead up`, or the caller, does that around the server."""
    gateway = Gateway(
        app,
        title="Fairlead",
        version=__version__,
        summary="The line in front of scarce AI endpoints.",
        description="Submit jobs, see where they stand, get their results. Errors are `application/problem+json`.",
        # The usual documentation pages load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Newer versions would ask OpenTelemetry before every request whether anybody wants to hear of it.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        exception_handlers={
            RequestError: handle_error,
            Unavailable: handle_error,
            NotReady: handle_error,
            HTTPException: _handle_http_exception,
            RequestValidationError: _handle_validation_error,
            Exception: handle_error,
        },
    )
    for router in ROUTERS:
        gateway.include_router(router)
    return gateway


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        # Starlette names the methods of the first route with this path, and there may be several.
        error.headers = {"Allow": ", ".join(sorted(_methods_of(request.scope["path"])))}
    return problem_response(of_http_exception(error, request.scope), request.scope)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """`GET /api/v1/jobs/bulk` came to the route of a job called "bulk": it is the method that is wrong, not the id."""
    if request.scope["method"] not in _methods_of(request.scope["path"]):
        return await _handle_http_exception(request, HTTPException(405))
    return await handle_validation_error(request, error)


def _methods_of(path: str) -> set[str]:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    # What has a path of its own ("/api/v1/jobs/bulk") is no value of a parameter ("/api/v1/jobs/{job_id}").
    named = [route for route in routes if route.path == path]
    matching = named or [route for route in routes if route.path_regex.match(path)]
    return {method for route in matching for method in route.methods or ()}


def _with_cors(app: ASGIApp, origins: list[str]) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Prefer", "X-Request-ID"],
        expose_headers=[
            "Idempotent-Replayed",
            "Location",
            "Preference-Applied",
            "RateLimit",
            "RateLimit-Policy",
            "Retry-After",
            "X-Request-ID",
        ],
    )
