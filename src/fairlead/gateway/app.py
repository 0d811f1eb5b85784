"""The gateway as an ASGI application.

From the outside in: CORS (if any origin is allowed), `RequestMiddleware` (request id, log, headers, unexpected errors),
`Guard` (access), `BodyLimit`, `FastPath` (submits), FastAPI (everything else). All layers are plain ASGI: a layer that
builds request and response objects would cost more than submitting a job. A layer that has nothing to do after the next
one is a plain function, which returns the awaitable of the next one: each coroutine costs as much as the layer's work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.domain.openai import BadRequest
from fairlead.domain.replicate import PREFIX
from fairlead.errors import RequestError, Unavailable
from fairlead.gateway import (
    admin_routes,
    batches,
    budgets,
    files,
    inference,
    jobs,
    metrics,
    output,
    queue_routes,
    schedules,
    turns,
    usage,
    webhooks,
    websockets,
)
from fairlead.gateway.auth import Guard
from fairlead.gateway.dashboard import live_views, pages
from fairlead.gateway.dashboard.live_views import LiveViews
from fairlead.gateway.fronts.fal import routes as fal_routes
from fairlead.gateway.fronts.fal import storage as fal_storage
from fairlead.gateway.fronts.fal.polls import Polls
from fairlead.gateway.fronts.fal.proxy import FalProxy
from fairlead.gateway.fronts.openai import background as openai_background
from fairlead.gateway.fronts.openai import batches as openai_batches
from fairlead.gateway.fronts.openai import files as openai_files
from fairlead.gateway.fronts.openai import routes as openai_routes
from fairlead.gateway.fronts.openai.answers import handle_bad_request
from fairlead.gateway.fronts.replicate import files as replicate_files
from fairlead.gateway.fronts.replicate import routes as replicate_routes
from fairlead.gateway.openapi import document
from fairlead.gateway.problems import (
    NotReady,
    handle_error,
    handle_validation_error,
    of_http_exception,
    problem_response,
)
from fairlead.gateway.rate_limit import SubmitRate
from fairlead.gateway.request_middleware import BodyLimit, RequestMiddleware
from fairlead.gateway.turn_events import TurnLiveness
from fairlead.version import __version__

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

ALLOWED_HEADERS = (
    "Authorization",
    "Cancel-After",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
    "Range",
    "Upload-Offset",
    "X-Request-ID",
)
_STAINLESS = ("Arch", "Lang", "OS", "Package-Version", "Retry-Count", "Runtime", "Runtime-Version", "Timeout")
OPENAI_HEADERS = (
    "OpenAI-Organization",
    "OpenAI-Project",
    "X-Fairlead-Queue",
    "X-Fairlead-User",
    "X-Fairlead-Webhook",
    *(f"X-Stainless-{name}" for name in _STAINLESS),
)
"""What OpenAI's clients send from a browser, and the headers of the front."""
_FAL = ("Object-Lifecycle", "Object-Lifecycle-Preference", "Queue-Priority", "Request-Timeout", "Runner-Hint")
FAL_HEADERS = ("X-Fal-Target-URL", *(f"X-Fal-{name}" for name in _FAL))
"""What fal's clients send from a browser."""

Handler = Callable[[Request], Awaitable[Response]]
FAST_ROUTES: dict[str, Handler] = {
    jobs.JOBS: jobs.submit_job,
    jobs.BULK: jobs.submit_jobs,
    "/v1/chat/completions": openai_routes.forward,
}
"""Maps the paths of submit routes to the functions that handle a POST."""
ROUTERS = (
    jobs.router,
    output.router,
    jobs.executions_router,
    batches.router,
    turns.router,
    files.router,
    inference.router,
    pages.router,
    pages.session_router,
    live_views.router,  # before `/ws/{job_id}`, which would match its path
    websockets.router,
    queue_routes.router,
    admin_routes.dead_router,
    admin_routes.router,
    admin_routes.keys_router,
    metrics.router,
    usage.router,
    budgets.router,
    webhooks.router,
    webhooks.jwks_router,
    openai_background.router,
    schedules.router,
    openai_files.router,  # before `/v1/{path}`, which would match its paths
    openai_batches.router,
    openai_routes.router,
    replicate_files.router,
    replicate_routes.router,
    fal_storage.router,  # before `/fal/{app}`, which would match its paths
    fal_routes.router,
)


class FastPath:
    """Middleware that calls the handlers of the submit routes directly, because FastAPI takes longer than all other
    layers together. Access checks and limits run before this layer. FastAPI's own submit routes have the same handlers
    (`test_gateway_fast_path.py`)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["method"] == "POST":
            handle = FAST_ROUTES.get(scope["path"])
            if handle is not None:
                return _respond(handle, scope, receive, send)
        return self.app(scope, receive, send)


async def _respond(handle: Handler, scope: Scope, receive: Receive, send: Send) -> None:
    # `RequestMiddleware` turns errors into the same responses as FastAPI's handlers.
    response = await handle(Request(scope, receive))
    await response(scope, receive, send)


class GatewayState:
    """The type of `request.app.state`. Its plain attributes are faster than Starlette's State class, which calls a
    function on each access."""

    guard: Guard

    def __init__(self, fairlead: Fairlead) -> None:
        self.fairlead = fairlead
        self.metrics = metrics.Metrics(fairlead)
        self.turn_liveness = TurnLiveness(fairlead)
        self.live_views = LiveViews(fairlead)
        self.fal_polls = Polls(fairlead)
        per_minute = fairlead.config.server.submits_per_minute
        self.submit_rate = SubmitRate(per_minute) if per_minute else None


class Gateway(FastAPI):
    state: GatewayState  # type: ignore[assignment]

    def __init__(self, fairlead: Fairlead, **options: Any) -> None:
        super().__init__(**options)
        self.state = GatewayState(fairlead)

    def build_middleware_stack(self) -> ASGIApp:
        fairlead = self.state.fairlead
        server = fairlead.config.server
        app: ASGIApp = FastPath(super().build_middleware_stack())
        largest = fairlead.config.artifacts.max_file
        of_paths = {
            batches.BATCHES: server.max_batch_body,
            pages.SESSION: min(pages.MAX_BODY, server.max_body),
            files.FILES: largest + files.FORM_OVERHEAD,
            replicate_files.FILES: largest + files.FORM_OVERHEAD,
            openai_files.FILES: largest + files.FORM_OVERHEAD,
        }
        # Inputs of predictions may contain files.
        inputs = max(server.max_body, server.max_batch_body)
        below = {files.UPLOADS: largest, fal_storage.UPLOADS: largest, PREFIX: inputs}
        app = BodyLimit(app, max_body=server.max_body, of_paths=of_paths, below=below)
        app = self.state.guard = Guard(
            app, fairlead=fairlead, routes=self.routes, host=server.host, allowed_origins=server.allowed_origins
        )
        app = RequestMiddleware(FalProxy(app), outermost=not server.allowed_origins)
        return _with_cors(app, server.allowed_origins) if server.allowed_origins else app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.middleware_stack is None or scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self  # as FastAPI and Starlette do, with two calls less
        await self.middleware_stack(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        return document(self)


def create_gateway(app: Fairlead) -> FastAPI:
    """Create the gateway of an application. The caller, for instance `fairlead up`, opens and runs the application
    itself."""
    gateway = Gateway(
        app,
        title="Fairlead",
        version=__version__,
        summary="A durable, fair job queue in front of scarce AI endpoints.",
        description="Submit jobs, follow their progress, get their results. Errors are `application/problem+json`.",
        # FastAPI's documentation pages load scripts from other hosts; `pages.api_docs` does not.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Newer versions check OpenTelemetry before every request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        exception_handlers={
            RequestError: handle_error,
            Unavailable: handle_error,
            NotReady: handle_error,
            BadRequest: handle_bad_request,
            HTTPException: _handle_http_exception,
            RequestValidationError: _handle_validation_error,
            Exception: handle_error,
        },
    )
    # `include_router` would make a copy of every route for each gateway, which takes 36 ms, and let a request ask one
    # router after the other, which takes up to 0.3 ms.
    gateway.routes.extend(route for router in ROUTERS for route in router.routes)
    return gateway


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        # Starlette lists only the methods of the first route with this path.
        error.headers = {"Allow": ", ".join(sorted(_methods_of(request.scope["path"])))}
    return problem_response(of_http_exception(error, request.scope), request.scope)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Convert a validation error of FastAPI to a response. The response is a 405 if the path does not support the
    method: `GET /api/v1/jobs/bulk` matches the route `/api/v1/jobs/{job_id}`, and an error about the id "bulk" would be
    misleading."""
    if request.scope["method"] not in _methods_of(request.scope["path"]):
        return await _handle_http_exception(request, HTTPException(405))
    return await handle_validation_error(request, error)


def _methods_of(path: str) -> set[str]:
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    # A fixed path ("/api/v1/jobs/bulk") takes precedence over a parameter ("/api/v1/jobs/{job_id}"), and the first
    # path that matches ("/v1/models/{model}") over later ones ("/v1/{path}").
    fixed = [route for route in routes if route.path == path]
    matching = fixed or [route for route in routes if route.path_regex.match(path)]
    return {method for route in matching if route.path == matching[0].path for method in route.methods or ()}


def _with_cors(app: ASGIApp, origins: list[str]) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=[*ALLOWED_HEADERS, *OPENAI_HEADERS, *FAL_HEADERS],
        expose_headers=[
            "Content-Range",
            "ETag",
            "Idempotent-Replayed",
            "Location",
            "Preference-Applied",
            "RateLimit",
            "RateLimit-Policy",
            "Retry-After",
            "Upload-Offset",
            "X-Fairlead-Job",
            "X-Fal-Error-Type",
            "X-Fal-Request-ID",
            "X-Fal-Request-Timeout-Type",
            "X-Request-ID",
        ],
    )
