"""Who may call each route, and which jobs a caller may see.

Every route has an entry in `RULES`; a route without one is refused. For a user's key, the `Guard` responds with 404 to
a path whose `{job_id}`, `{batch_id}` or `{turn_id}` belongs to another user, so the routes do not have to check this
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Route, WebSocketRoute

from fairlead.domain.access import Role
from fairlead.errors import NotFound
from fairlead.gateway.problems import Forbidden

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

CALLER = "fairlead.caller"
WEBSOCKET = "WS"


class Access(Enum):
    """Who may call a route. OPEN: everyone, without a key. ANY: every key. SERVICE: keys of services and admins. ADMIN:
    keys of admins. The key of a viewer may also call any route that only reads; the `Guard` checks this."""

    OPEN = "open"
    ANY = "any"
    SERVICE = "service"
    ADMIN = "admin"

    def admits(self, role: Role) -> bool:
        return role in _ROLES[self]


_ROLES = {
    Access.OPEN: frozenset(Role),
    Access.ANY: frozenset(Role),
    Access.SERVICE: frozenset({Role.SERVICE, Role.ADMIN}),
    Access.ADMIN: frozenset({Role.ADMIN}),
}

# What operators change at run time and set back.
_OVERRIDDEN = (
    "/admin/services/{service}/limit", "/admin/services/{service}/rate", "/admin/rates/{of}/{name:path}",
    "/admin/budgets/{budget}",
)  # fmt: skip
OVERRIDES = tuple((method, path) for path in _OVERRIDDEN for method in ("PUT", "DELETE"))

# By method (WS for a WebSocket) and path. HEAD has the rule of GET.
RULES: dict[tuple[str, str], Access] = {
    ("GET", "/"): Access.OPEN,
    ("GET", "/docs"): Access.OPEN,
    ("GET", "/static/{path:path}"): Access.OPEN,
    ("POST", "/session"): Access.OPEN,
    ("GET", "/session"): Access.ANY,
    ("DELETE", "/session"): Access.ANY,
    (WEBSOCKET, "/ws/dashboard"): Access.ANY,
    ("GET", "/livez"): Access.OPEN,
    ("GET", "/readyz"): Access.OPEN,
    ("GET", "/openapi.json"): Access.ANY,
    ("POST", "/api/v1/tickets"): Access.ANY,
    ("POST", "/api/v1/jobs"): Access.ANY,
    ("POST", "/api/v1/jobs/bulk"): Access.ANY,
    ("GET", "/api/v1/search"): Access.ANY,
    ("GET", "/api/v1/jobs"): Access.ANY,
    ("GET", "/api/v1/jobs/{job_id}"): Access.ANY,
    ("DELETE", "/api/v1/jobs/{job_id}"): Access.ANY,
    ("GET", "/api/v1/jobs/{job_id}/events"): Access.ANY,
    ("GET", "/api/v1/jobs/{job_id}/output"): Access.ANY,
    ("GET", "/api/v1/jobs/{job_id}/why"): Access.ANY,
    ("POST", "/api/v1/jobs/{job_id}/cancel"): Access.ANY,
    ("POST", "/api/v1/jobs/{job_id}/resume"): Access.ANY,
    ("POST", "/api/v1/jobs/{job_id}/retry"): Access.ANY,
    ("POST", "/api/v1/executions/{job_id}/retry-question"): Access.ANY,
    ("POST", "/api/v1/batches"): Access.ANY,
    ("GET", "/api/v1/batches"): Access.ANY,
    ("GET", "/api/v1/batches/{batch_id}"): Access.ANY,
    ("GET", "/api/v1/batches/{batch_id}/items"): Access.ANY,
    ("GET", "/api/v1/batches/{batch_id}/results"): Access.ANY,
    ("GET", "/api/v1/batches/{batch_id}/events"): Access.ANY,
    ("POST", "/api/v1/batches/{batch_id}/cancel"): Access.ANY,
    ("POST", "/api/v1/batches/{batch_id}/resume"): Access.ANY,
    ("POST", "/api/v1/batches/{batch_id}/retry"): Access.ANY,
    ("POST", "/api/v1/batches/{batch_id}/items/{item}/retry"): Access.ANY,
    ("POST", "/api/v1/jobs/{job_id}/steps/{index}/retry"): Access.ANY,
    ("POST", "/api/v1/turns"): Access.ANY,
    ("GET", "/api/v1/turns/{turn_id}"): Access.ANY,
    ("GET", "/api/v1/turns/{turn_id}/events"): Access.ANY,
    ("POST", "/api/v1/turns/{turn_id}/renew"): Access.ANY,
    ("POST", "/api/v1/turns/{turn_id}/finish"): Access.ANY,
    ("POST", "/api/v1/turns/{turn_id}/cancel"): Access.ANY,
    ("POST", "/api/v1/files"): Access.ANY,
    ("GET", "/api/v1/files"): Access.ANY,
    ("GET", "/api/v1/files/{file_id}"): Access.ANY,
    ("DELETE", "/api/v1/files/{file_id}"): Access.ANY,
    ("POST", "/api/v1/uploads"): Access.ANY,
    ("GET", "/api/v1/uploads/{file_id}"): Access.ANY,
    ("PATCH", "/api/v1/uploads/{file_id}"): Access.ANY,
    ("POST", "/api/v1/uploads/{file_id}/complete"): Access.ANY,
    ("GET", "/files/{file_id}"): Access.ANY,
    ("GET", "/api/v1/usage"): Access.ANY,
    ("GET", "/api/v1/budgets"): Access.ANY,
    ("GET", "/.well-known/jwks.json"): Access.OPEN,
    ("GET", "/api/v1/webhooks/endpoints"): Access.ANY,
    ("POST", "/api/v1/webhooks/endpoints"): Access.ANY,
    ("GET", "/api/v1/webhooks/endpoints/{endpoint_id}"): Access.ANY,
    ("PUT", "/api/v1/webhooks/endpoints/{endpoint_id}"): Access.ANY,
    ("DELETE", "/api/v1/webhooks/endpoints/{endpoint_id}"): Access.ANY,
    ("POST", "/api/v1/webhooks/endpoints/{endpoint_id}/rotate"): Access.ANY,
    ("POST", "/api/v1/webhooks/secret"): Access.ANY,
    ("GET", "/api/v1/webhooks/deliveries"): Access.ANY,
    ("GET", "/api/v1/webhooks/deliveries/{delivery_id}"): Access.ANY,
    ("POST", "/api/v1/webhooks/deliveries/replay"): Access.ANY,
    ("GET", "/api/v1/schedules"): Access.ANY,
    ("POST", "/api/v1/schedules"): Access.ANY,
    ("GET", "/api/v1/schedules/{schedule_id}"): Access.ANY,
    ("PUT", "/api/v1/schedules/{schedule_id}"): Access.ANY,
    ("DELETE", "/api/v1/schedules/{schedule_id}"): Access.ANY,
    ("POST", "/api/v1/schedules/{schedule_id}/pause"): Access.ANY,
    ("POST", "/api/v1/schedules/{schedule_id}/resume"): Access.ANY,
    ("POST", "/api/v1/schedules/{schedule_id}/run"): Access.ANY,
    ("GET", "/api/v1/schedules/{schedule_id}/runs"): Access.ANY,
    ("POST", "/inference"): Access.ANY,
    ("GET", "/v1/models"): Access.ANY,
    ("GET", "/v1/models/{model:path}"): Access.ANY,
    ("POST", "/v1/chat/completions"): Access.ANY,
    ("POST", "/v1/completions"): Access.ANY,
    ("POST", "/v1/embeddings"): Access.ANY,
    ("POST", "/v1/images/generations"): Access.ANY,
    ("POST", "/v1/responses"): Access.ANY,
    ("GET", "/v1/responses/{response_id}"): Access.ANY,
    ("DELETE", "/v1/responses/{response_id}"): Access.ANY,
    ("GET", "/v1/responses/{response_id}/input_items"): Access.ANY,
    ("POST", "/v1/responses/{response_id}/cancel"): Access.ANY,
    ("POST", "/v1/files"): Access.ANY,
    ("GET", "/v1/files"): Access.ANY,
    ("GET", "/v1/files/{file_id}"): Access.ANY,
    ("GET", "/v1/files/{file_id}/content"): Access.ANY,
    ("DELETE", "/v1/files/{file_id}"): Access.ANY,
    ("POST", "/v1/batches"): Access.ANY,
    ("GET", "/v1/batches"): Access.ANY,
    ("GET", "/v1/batches/{id}"): Access.ANY,
    ("POST", "/v1/batches/{id}/cancel"): Access.ANY,
    ("POST", "/v1/{path:path}"): Access.ANY,
    ("POST", "/replicate/v1/predictions"): Access.ANY,
    ("GET", "/replicate/v1/predictions"): Access.ANY,
    ("GET", "/replicate/v1/predictions/{job_id}"): Access.ANY,
    ("GET", "/replicate/v1/predictions/{job_id}/stream"): Access.ANY,
    ("POST", "/replicate/v1/predictions/{job_id}/cancel"): Access.ANY,
    ("GET", "/replicate/v1/models"): Access.ANY,
    ("GET", "/replicate/v1/models/{owner}/{name}"): Access.ANY,
    ("POST", "/replicate/v1/models/{owner}/{name}/predictions"): Access.ANY,
    ("GET", "/replicate/v1/models/{owner}/{name}/versions"): Access.ANY,
    ("GET", "/replicate/v1/models/{owner}/{name}/versions/{version}"): Access.ANY,
    ("GET", "/replicate/v1/deployments/{owner}/{name}"): Access.ANY,
    ("POST", "/replicate/v1/deployments/{owner}/{name}/predictions"): Access.ANY,
    ("POST", "/replicate/v1/files"): Access.ANY,
    ("GET", "/replicate/v1/files"): Access.ANY,
    ("GET", "/replicate/v1/files/{file_id}"): Access.ANY,
    ("DELETE", "/replicate/v1/files/{file_id}"): Access.ANY,
    ("GET", "/replicate/v1/account"): Access.ANY,
    ("GET", "/replicate/v1/webhooks/default/secret"): Access.ANY,
    **{(method, "/fal/proxy"): Access.ANY for method in ("GET", "POST", "PUT")},
    ("POST", "/fal/run/{app:path}"): Access.ANY,
    ("GET", "/fal/{app:path}/requests/{job_id}"): Access.ANY,
    ("GET", "/fal/{app:path}/requests/{job_id}/status"): Access.ANY,
    ("GET", "/fal/{app:path}/requests/{job_id}/status/stream"): Access.ANY,
    ("PUT", "/fal/{app:path}/requests/{job_id}/cancel"): Access.ANY,
    ("POST", "/fal/storage/upload/initiate"): Access.ANY,
    ("POST", "/fal/storage/upload/initiate-multipart"): Access.ANY,
    ("PUT", "/fal/storage/files/{file_id}"): Access.ANY,
    ("PUT", "/fal/storage/files/{file_id}/{part}"): Access.ANY,
    ("POST", "/fal/storage/files/{file_id}/complete"): Access.ANY,
    ("POST", "/fal/{app:path}"): Access.ANY,
    (WEBSOCKET, "/ws"): Access.ANY,
    (WEBSOCKET, "/ws/{job_id}"): Access.ANY,
    ("GET", "/metrics"): Access.SERVICE,
    ("GET", "/queue/status"): Access.SERVICE,
    ("GET", "/queue/status/{region}"): Access.SERVICE,
    ("GET", "/admin/runtime/stats"): Access.ADMIN,
    ("GET", "/admin/queue-dead"): Access.ADMIN,
    ("POST", "/admin/queue-dead/requeue"): Access.ADMIN,
    ("POST", "/admin/queue-dead/purge"): Access.ADMIN,
    ("POST", "/admin/services/{service}/pause"): Access.ADMIN,
    ("POST", "/admin/services/{service}/resume"): Access.ADMIN,
    **dict.fromkeys(OVERRIDES, Access.ADMIN),
    ("POST", "/admin/services/{service}/rebuild"): Access.ADMIN,
    ("POST", "/admin/jobs/{job_id}/priority"): Access.ADMIN,
    ("GET", "/admin/workers"): Access.ADMIN,
    ("POST", "/admin/workers/{name}/drain"): Access.ADMIN,
    ("GET", "/admin/audit"): Access.ADMIN,
    ("GET", "/admin/doctor"): Access.ADMIN,
    ("GET", "/admin/keys"): Access.ADMIN,
    ("POST", "/admin/keys"): Access.ADMIN,
    ("DELETE", "/admin/keys/{key_id}"): Access.ADMIN,
}

# Requests other than GET that a viewer may send.
READ_ONLY = frozenset({("POST", "/api/v1/tickets"), ("DELETE", "/session")})

# Event streams. A browser may open them with a ticket.
STREAMS = frozenset(
    {
        ("GET", "/api/v1/jobs/{job_id}/events"),
        ("GET", "/api/v1/jobs/{job_id}/output"),
        ("GET", "/api/v1/batches/{batch_id}/events"),
        ("GET", "/api/v1/turns/{turn_id}/events"),
    }
)

# Writes that respond as soon as they are committed. They complete even if their key is revoked meanwhile, so that the
# caller learns what was written. Every other request is ended when its key is revoked.
SHORT = frozenset(
    {
        ("POST", "/session"),
        ("DELETE", "/session"),
        ("POST", "/api/v1/tickets"),
        ("POST", "/api/v1/jobs/bulk"),
        ("DELETE", "/api/v1/jobs/{job_id}"),
        ("POST", "/api/v1/jobs/{job_id}/cancel"),
        ("POST", "/api/v1/jobs/{job_id}/resume"),
        ("POST", "/api/v1/jobs/{job_id}/retry"),
        ("POST", "/api/v1/jobs/{job_id}/steps/{index}/retry"),
        ("POST", "/api/v1/executions/{job_id}/retry-question"),
        ("POST", "/api/v1/batches"),
        ("POST", "/api/v1/batches/{batch_id}/cancel"),
        ("POST", "/api/v1/batches/{batch_id}/resume"),
        ("POST", "/api/v1/batches/{batch_id}/retry"),
        ("POST", "/api/v1/batches/{batch_id}/items/{item}/retry"),
        ("POST", "/api/v1/turns"),
        ("POST", "/api/v1/turns/{turn_id}/renew"),
        ("POST", "/api/v1/turns/{turn_id}/finish"),
        ("POST", "/api/v1/turns/{turn_id}/cancel"),
        ("DELETE", "/api/v1/files/{file_id}"),
        ("POST", "/api/v1/uploads"),
        ("DELETE", "/v1/files/{file_id}"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/batches/{id}/cancel"),
        ("PUT", "/fal/{app:path}/requests/{job_id}/cancel"),
        ("POST", "/fal/storage/upload/initiate"),
        ("POST", "/fal/storage/upload/initiate-multipart"),
        ("POST", "/fal/{app:path}"),
        ("POST", "/api/v1/webhooks/endpoints"),
        ("PUT", "/api/v1/webhooks/endpoints/{endpoint_id}"),
        ("DELETE", "/api/v1/webhooks/endpoints/{endpoint_id}"),
        ("POST", "/api/v1/webhooks/endpoints/{endpoint_id}/rotate"),
        ("POST", "/api/v1/webhooks/secret"),
        ("POST", "/api/v1/webhooks/deliveries/replay"),
        ("DELETE", "/v1/responses/{response_id}"),
        ("POST", "/v1/responses/{response_id}/cancel"),
        ("POST", "/api/v1/schedules"),
        ("PUT", "/api/v1/schedules/{schedule_id}"),
        ("DELETE", "/api/v1/schedules/{schedule_id}"),
        ("POST", "/api/v1/schedules/{schedule_id}/pause"),
        ("POST", "/api/v1/schedules/{schedule_id}/resume"),
        ("POST", "/api/v1/schedules/{schedule_id}/run"),
        ("POST", "/replicate/v1/predictions/{job_id}/cancel"),
        ("DELETE", "/replicate/v1/files/{file_id}"),
        ("POST", "/admin/queue-dead/requeue"),
        ("POST", "/admin/queue-dead/purge"),
        ("POST", "/admin/services/{service}/pause"),
        ("POST", "/admin/services/{service}/resume"),
        *OVERRIDES,
        ("POST", "/admin/services/{service}/rebuild"),
        ("POST", "/admin/jobs/{job_id}/priority"),
        ("POST", "/admin/workers/{name}/drain"),
        ("POST", "/admin/keys"),
        ("DELETE", "/admin/keys/{key_id}"),
    }
)
# Short as well, unless the caller sends `Prefer: wait=N`.
SHORT_UNLESS_PREFERRED = frozenset(
    {
        ("POST", "/api/v1/jobs"),
        ("POST", "/replicate/v1/predictions"),
        ("POST", "/replicate/v1/models/{owner}/{name}/predictions"),
        ("POST", "/replicate/v1/deployments/{owner}/{name}/predictions"),
    }
)


# Routes whose URL may have a ticket for the file or job that the parameter names. It is valid until it expires.
TICKETED = {
    ("GET", "/files/{file_id}"): "file_id",
    ("PUT", "/fal/storage/files/{file_id}"): "file_id",
    ("PUT", "/fal/storage/files/{file_id}/{part}"): "file_id",
    ("POST", "/fal/storage/files/{file_id}/complete"): "file_id",
    ("GET", "/replicate/v1/predictions/{job_id}/stream"): "job_id",
}


class Lasts(Enum):
    """Whether requests to a route may run for long: never, only with a `Prefer` header, or always. A request that may
    run for long is ended when its key is revoked; a short one is left to finish."""

    NEVER = "never"
    IF_PREFERRED = "if it has the header Prefer"
    ALWAYS = "always"


def rule_of(method: str, path: str) -> Access | None:
    return RULES.get(("GET" if method == "HEAD" else method, path))


def is_read_only(method: str, path: str) -> bool:
    return method in ("GET", "HEAD", WEBSOCKET) or (method, path) in READ_ONLY


def is_stream(method: str, path: str) -> bool:
    return method == WEBSOCKET or (method, path) in STREAMS


def ticket_parameter(method: str, path: str) -> str | None:
    """The parameter of the path for which a URL of this route may have a ticket."""
    return TICKETED.get(("GET" if method == "HEAD" else method, path))


def lasts(method: str, path: str) -> Lasts:
    if (method, path) in SHORT:
        return Lasts.NEVER
    return Lasts.IF_PREFERRED if (method, path) in SHORT_UNLESS_PREFERRED else Lasts.ALWAYS


# ---------------------------------------------------------------- routes


def all_routes(routes: list[BaseRoute]) -> Iterator[tuple[frozenset[str], str, Route | WebSocketRoute]]:
    """Yield the methods, the path and the object of every route, including the routes of included routers."""
    for route in routes:
        inner = getattr(route, "original_router", None)  # how newer versions of FastAPI include a router
        if inner is not None:
            yield from all_routes(inner.routes)
        elif isinstance(route, WebSocketRoute):
            yield frozenset({WEBSOCKET}), route.path, route
        elif isinstance(route, Route) and route.methods:
            yield frozenset(route.methods), route.path, route
        else:
            raise TypeError(f"{route!r} has no path and methods, so gateway/permissions.py cannot check it")


# ---------------------------------------------------------------- callers


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    `user_id` is set if the caller reaches only one user's jobs, because it sent a user's key or a ticket for one user.
    `key_id` is None while there are no keys. `cookie` is the session cookie of a browser that signed in to the
    dashboard. `onlooker` is true if the request has a ticket that a viewer's key requested for one user: such a caller
    sees that user's jobs and may not change them.
    """

    role: Role
    user_id: str | None
    name: str
    key_id: str | None
    cookie: str | None = field(default=None, repr=False)
    onlooker: bool = False

    def __post_init__(self) -> None:
        # A user's key without a user would see the jobs of all users.
        if (self.role is Role.USER) != (self.user_id is not None):
            raise ValueError(f"a key of the role {self.role} with user_id {self.user_id!r}")

    @property
    def may_act(self) -> bool:
        return self.role is not Role.VIEWER and not self.onlooker

    @property
    def who(self) -> str:
        """The name for the audit log. Names are not unique, so the id of the key is appended if the key is in the
        database."""
        return self.name if self.key_id in (None, ENVIRONMENT.key_id) else f"{self.name} ({self.key_id})"


KEYLESS = Caller(Role.ADMIN, None, "keyless", None)
URL_TICKET = "url-ticket"
"""The `key_id` of callers with the ticket of a URL."""
ENVIRONMENT = Caller(Role.ADMIN, None, "FAIRLEAD_ADMIN_KEY", "env")


def caller_of(connection: HTTPConnection) -> Caller:
    """Return the caller of a request or WebSocket that has passed the `Guard`."""
    caller: Caller = connection.scope[CALLER]
    return caller


def who_of(request: HTTPConnection) -> str:
    """Return the caller's name for the audit log."""
    return caller_of(request).who


def operator_of(request: HTTPConnection) -> str | None:
    """Return the caller's name for the audit log if the caller is an admin, otherwise None.

    Use this for actions that users may also take on their own jobs: only the actions of admins are audited. Keys of
    services act for users, so their actions are not audited either.
    """
    caller = caller_of(request)
    return caller.who if caller.role is Role.ADMIN else None


def user_in_reach(caller: Caller, user_id: str | None) -> str | None:
    """Return the user whose jobs a list or a stream contains, or None for all users. `user_id` is the user that the
    request names, if any. A user's key sees only its own user's jobs; raises Forbidden if the request names another."""
    if caller.role is not Role.USER:
        return user_id
    if user_id is not None and user_id != caller.user_id:
        raise Forbidden("a user's key sees its own jobs only; omit user_id", pointer="/user_id")
    return caller.user_id


async def check_job_in_reach(fairlead: Fairlead, caller: Caller, job_id: str) -> None:
    """Raise NotFound if a user's key asks for a job of another user."""
    if caller.role is Role.USER and await fairlead.owner_of(job_id) != caller.user_id:
        raise NotFound(f"there is no job {job_id}")


async def check_file_in_reach(fairlead: Fairlead, caller: Caller, file_id: str) -> None:
    """Raise NotFound if a user's key asks for a file of another user."""
    if caller.role is Role.USER:
        await fairlead.files.get(file_id, caller.user_id)


async def check_turn_in_reach(fairlead: Fairlead, caller: Caller, turn_id: str) -> None:
    """Raise NotFound if a user's key asks for a turn of another user."""
    if caller.role is Role.USER and await fairlead.owner_of(turn_id) != caller.user_id:
        raise NotFound(f"there is no turn {turn_id}")


async def check_batch_in_reach(fairlead: Fairlead, caller: Caller, batch_id: str) -> None:
    """Raise NotFound if a user's key asks for a batch of another user."""
    if caller.role is Role.USER and await fairlead.owner_of_batch(batch_id) != caller.user_id:
        raise NotFound(f"there is no batch {batch_id}")
