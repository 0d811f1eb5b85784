"""Who may use which route, and whose jobs a caller may see.

Every route has a line in `RULES`; one without is refused to everybody. A route of rule ANY whose path has a `{job_id}`
is answered to a user key with 404 for a job of somebody else, and so for `{batch_id}` and `{turn_id}`: the `Guard`
looks, so no route can forget to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Route, WebSocketRoute

from fairlead.domain.keys import Role
from fairlead.errors import NotFound
from fairlead.gateway.problems import Forbidden

if TYPE_CHECKING:
    from fairlead.app import Fairlead

CALLER = "fairlead.caller"
WEBSOCKET = "WS"


class Access(Enum):
    """Who may: everybody; any key; a service or an admin; an admin."""

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

# By method (WS for a WebSocket) and path; HEAD goes with GET.
RULES: dict[tuple[str, str], Access] = {
    ("GET", "/"): Access.OPEN,
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
    ("GET", "/api/v1/jobs"): Access.ANY,
    ("GET", "/api/v1/jobs/{job_id}"): Access.ANY,
    ("DELETE", "/api/v1/jobs/{job_id}"): Access.ANY,
    ("GET", "/api/v1/jobs/{job_id}/events"): Access.ANY,
    ("GET", "/api/v1/jobs/{job_id}/why"): Access.ANY,
    ("POST", "/api/v1/jobs/{job_id}/cancel"): Access.ANY,
    ("POST", "/api/v1/jobs/{job_id}/resume"): Access.ANY,
    ("POST", "/api/v1/batches"): Access.ANY,
    ("GET", "/api/v1/batches"): Access.ANY,
    ("GET", "/api/v1/batches/{batch_id}"): Access.ANY,
    ("GET", "/api/v1/batches/{batch_id}/items"): Access.ANY,
    ("GET", "/api/v1/batches/{batch_id}/results"): Access.ANY,
    ("GET", "/api/v1/batches/{batch_id}/events"): Access.ANY,
    ("POST", "/api/v1/batches/{batch_id}/cancel"): Access.ANY,
    ("POST", "/api/v1/batches/{batch_id}/resume"): Access.ANY,
    ("POST", "/api/v1/batches/{batch_id}/items/{item}/retry"): Access.ANY,
    ("POST", "/api/v1/jobs/{job_id}/steps/{index}/retry"): Access.ANY,
    ("POST", "/api/v1/turns"): Access.ANY,
    ("GET", "/api/v1/turns/{turn_id}"): Access.ANY,
    ("GET", "/api/v1/turns/{turn_id}/events"): Access.ANY,
    ("POST", "/api/v1/turns/{turn_id}/renew"): Access.ANY,
    ("POST", "/api/v1/turns/{turn_id}/finish"): Access.ANY,
    ("POST", "/api/v1/turns/{turn_id}/cancel"): Access.ANY,
    ("POST", "/inference"): Access.ANY,
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
    ("PUT", "/admin/services/{service}/limit"): Access.ADMIN,
    ("DELETE", "/admin/services/{service}/limit"): Access.ADMIN,
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

# What changes nothing, beside what is read: a viewer may.
HARMLESS = frozenset({("POST", "/api/v1/tickets"), ("DELETE", "/session")})

# Answers that do not end by themselves. A browser opens them with a ticket, and they end when their key is revoked.
STREAMS = frozenset(
    {
        ("GET", "/api/v1/jobs/{job_id}/events"),
        ("GET", "/api/v1/batches/{batch_id}/events"),
        ("GET", "/api/v1/turns/{turn_id}/events"),
    }
)

# Answers that wait with `Prefer: wait=N`: for so long they end with their key as streams do.
WAITS = frozenset({("POST", "/api/v1/jobs"), ("GET", "/api/v1/jobs/{job_id}"), ("GET", "/api/v1/turns/{turn_id}")})


def rule_of(method: str, path: str) -> Access | None:
    return RULES.get(("GET" if method == "HEAD" else method, path))


def only_looks(method: str, path: str) -> bool:
    return method in ("GET", "HEAD", WEBSOCKET) or (method, path) in HARMLESS


def is_stream(method: str, path: str) -> bool:
    return method == WEBSOCKET or (method, path) in STREAMS


def may_wait(method: str, path: str) -> bool:
    return (method, path) in WAITS


# ---------------------------------------------------------------- routes


def all_routes(routes: list[BaseRoute]) -> Iterator[tuple[frozenset[str], str, Route | WebSocketRoute]]:
    """(methods, path, route) of every route, those of included routers too. What it does not know it cannot guard."""
    for route in routes:
        inner = getattr(route, "original_router", None)  # how newer versions of FastAPI include a router
        if inner is not None:
            yield from all_routes(inner.routes)
        elif isinstance(route, WebSocketRoute):
            yield frozenset({WEBSOCKET}), route.path, route
        elif isinstance(route, Route) and route.methods:
            yield frozenset(route.methods), route.path, route
        else:
            raise TypeError(f"{route!r} is no route with a path and methods: gateway/access.py has no rule for such")


# ---------------------------------------------------------------- callers


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `user_id` is that of a user's key, and None for all others; `key_id` is None without
    keys. `cookie` is that of a browser that signed in."""

    role: Role
    user_id: str | None
    name: str
    key_id: str | None
    cookie: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # A user of nobody would be taken for one who may see everybody.
        if (self.role is Role.USER) != (self.user_id is not None):
            raise ValueError(f"a key of the role {self.role} with user_id {self.user_id!r}")

    @property
    def may_act(self) -> bool:
        return self.role is not Role.VIEWER

    @property
    def who(self) -> str:
        """As the audit has it. Names are not unique, so the key's id stands beside it, if it has one in the truth."""
        return self.name if self.key_id in (None, ENVIRONMENT.key_id) else f"{self.name} ({self.key_id})"


KEYLESS = Caller(Role.ADMIN, None, "keyless", None)
ENVIRONMENT = Caller(Role.ADMIN, None, "FAIRLEAD_ADMIN_KEY", "env")


def caller_of(connection: HTTPConnection) -> Caller:
    """Of a request or a WebSocket that has passed the `Guard`."""
    caller: Caller = connection.scope[CALLER]
    return caller


def who_of(request: HTTPConnection) -> str:
    """Who acts, as the audit has it."""
    return caller_of(request).who


def operator_of(request: HTTPConnection) -> str | None:
    """Who acts, as the audit has it, where users may act on what is their own: None unless it is an operator. What a
    service does it does for one of its users, and there may be as much of that as of theirs."""
    caller = caller_of(request)
    return caller.who if caller.role is Role.ADMIN else None


def user_in_reach(caller: Caller, asked: str | None) -> str | None:
    """Whose jobs a list or a stream is about: those of the user that was asked for, None for all. A user key's are
    its own, asked for or not."""
    if caller.role is not Role.USER:
        return asked
    if asked is not None and asked != caller.user_id:
        raise Forbidden("a user's key sees its own jobs only; leave user_id out", pointer="/user_id")
    return caller.user_id


async def check_job_in_reach(fairlead: Fairlead, caller: Caller, job_id: str) -> None:
    """A job of somebody else is not there, as far as a user key can tell."""
    if caller.role is Role.USER and await fairlead.owner_of(job_id) != caller.user_id:
        raise NotFound(f"there is no job {job_id}")


async def check_turn_in_reach(fairlead: Fairlead, caller: Caller, turn_id: str) -> None:
    """The same for a turn, which is a job whose work its caller does."""
    if caller.role is Role.USER and await fairlead.owner_of(turn_id) != caller.user_id:
        raise NotFound(f"there is no turn {turn_id}")


async def check_batch_in_reach(fairlead: Fairlead, caller: Caller, batch_id: str) -> None:
    """The same for a batch."""
    if caller.role is Role.USER and await fairlead.owner_of_batch(batch_id) != caller.user_id:
        raise NotFound(f"there is no batch {batch_id}")
