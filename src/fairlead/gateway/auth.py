"""Authentication and authorization of every request.

A caller sends its key as `Authorization: Bearer`. A key in a URL is refused, because proxies and browsers store URLs.
Browsers cannot set headers on WebSockets and event streams, so they put a ticket into the URL: a secret that a caller
with a key requests, and that is valid once.

While there is no key at all, neither in the database nor in `FAIRLEAD_ADMIN_KEY`, the gateway listens on loopback only.
The threat is then the user's own browser: a page of another site may post to the gateway, or the name of that site may
resolve to 127.0.0.1 (DNS rebinding). So the connection must have arrived on loopback, the Host header must name this
gateway, and an Origin header must name the same host or an allowed origin. The Origin of a WebSocket is always checked,
since browsers let every page open WebSockets to any host.

A browser that signed in to the dashboard sends a session cookie. Browsers also add the cookie to requests that pages of
other sites cause. Therefore, if a request with the cookie changes something or opens a WebSocket, it must have an
Origin header that names the gateway itself or an allowed origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote_to_bytes
from uuid import UUID

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.domain.access import KEY_PATTERN, Key, Role, secret_hash
from fairlead.domain.files import UPLOADS_OF, stream_subject
from fairlead.errors import InvalidInput, NotFound, RequestError, Unavailable
from fairlead.gateway.credentials import Cookies, KeyCache, cookie_in, refuse, run_until_revoked
from fairlead.gateway.origins import Origins, network_of, refuse_embedded
from fairlead.gateway.permissions import (
    CALLER,
    ENVIRONMENT,
    KEYLESS,
    URL_TICKET,
    WEBSOCKET,
    Access,
    Caller,
    Lasts,
    all_routes,
    check_batch_in_reach,
    check_file_in_reach,
    check_job_in_reach,
    check_turn_in_reach,
    is_read_only,
    is_stream,
    lasts,
    rule_of,
    ticket_parameter,
)
from fairlead.gateway.problems import Forbidden, Unauthorized
from fairlead.gateway.rate_limit import Attempts
from fairlead.gateway.request_middleware import KEY_IN_URL, headers_of

if TYPE_CHECKING:
    from fairlead.app.fairlead import Fairlead

MIN_KEY_LENGTH_IN_URL = 16
WRONG_KEYS_PER_MINUTE = 20
SIGN_INS_PER_MINUTE = 60
TICKETS_PER_MINUTE = 6000
SCHEMES = frozenset({b"bearer", b"token", b"key"})
"""Older clients of Replicate send `Authorization: Token`, clients of fal `Authorization: Key`."""


class Target(NamedTuple):
    """The properties of a route that decide how the `Guard` treats a request. `access` is None for a route without an
    entry in `RULES`; the guard refuses every request to it."""

    access: Access | None
    stream: bool
    lasts: Lasts
    read_only: bool
    params: dict[str, Any]
    ticketed: str | None = None


class Guard:
    """ASGI middleware in front of `routes` that authenticates every request and refuses those that are not allowed."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        fairlead: Fairlead,
        routes: Sequence[BaseRoute],
        host: str,
        allowed_origins: Sequence[str],
    ) -> None:
        self.app = app
        self._fairlead = fairlead
        admin_key = fairlead.settings.admin_key or None
        self._admin_key = admin_key.encode() if admin_key is not None else None
        # A short key may be part of a URL by chance.
        self._long_admin_key = admin_key if admin_key is not None and len(admin_key) >= MIN_KEY_LENGTH_IN_URL else None
        self._routes = list(all_routes(list(routes)))
        # Most requests have a path without parameters, which is searched for only once.
        self._plain = {(method, path) for methods, path, _ in self._routes for method in methods if "{" not in path}
        self._found: dict[tuple[str, str], Target] = {}
        self._origins = Origins(host, allowed_origins)
        self.key_cache = KeyCache(fairlead.keys, fairlead.count_keys, self._is_live)
        self.cookies = Cookies(fairlead.session)
        self._wrong_keys = Attempts(WRONG_KEYS_PER_MINUTE)
        self.tickets = Attempts(TICKETS_PER_MINUTE)
        self._sign_ins = Attempts(SIGN_INS_PER_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            target = self._target(scope)
            caller = await self._admitted(scope, target)
        except (RequestError, Unavailable) as error:
            await refuse(error, scope, receive, send)
            return
        if caller is not None:
            scope[CALLER] = caller
        if caller is not None and target is not None and _ends_with_key(target, scope):
            await run_until_revoked(self.app, self.key_cache, self.cookies, caller, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    # ------------------------------------------------------------ authorization

    def _target(self, scope: Scope) -> Target | None:
        """Find the route that the router will choose. Returns None if no route matches; the router then responds with
        404."""
        method = scope["method"] if scope["type"] == "http" else WEBSOCKET
        plain = (method, scope["path"])
        if scope.get("root_path") or plain not in self._plain:
            return self._search(method, scope)
        target = self._found.get(plain)
        if target is None:
            target = self._search(method, scope)
            if target is not None:
                self._found[plain] = target
        return target

    def _search(self, method: str, scope: Scope) -> Target | None:
        other_method = None
        for methods, path, route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                params = child.get("path_params", {})
                return Target(
                    rule_of(method, path),
                    is_stream(method, path),
                    lasts(method, path),
                    is_read_only(method, path),
                    params,
                    ticket_parameter(method, path),
                )
            if match is Match.PARTIAL and all(rule_of(each, path) is Access.OPEN for each in methods):
                # Every method of this path is open to everyone, so the response may list its methods.
                other_method = Target(Access.OPEN, stream=False, lasts=Lasts.NEVER, read_only=True, params={})
        return other_method

    async def _admitted(self, scope: Scope, target: Target | None) -> Caller | None:
        """Authenticate and authorize a request. Returns its caller, or None if the route is open to everyone. Raises if
        the request is not allowed."""
        headers = headers_of(scope)
        self._refuse_key_in_url(scope)
        if target is not None and target.access is Access.OPEN:
            # Open routes, such as probes, do not wait for the database. While there are no keys, they too are limited
            # to this machine.
            if self._admin_key is None and self.key_cache.empty:
                self._origins.check_keyless(scope, headers)
            return None
        if target is not None and target.ticketed and b"ticket=" in scope["query_string"]:
            return await self._of_url_ticket(scope["query_string"], target)
        if self._admin_key is None and self.key_cache.old:
            await self.key_cache.renew()
        # A key is checked even while the cache is empty. Otherwise a new user's key would count as keyless, and could
        # do everything.
        if self._admin_key is None and self.key_cache.empty and b"fl_" not in headers.get(b"authorization", b""):
            self._origins.check_keyless(scope, headers)
            caller = KEYLESS
        else:
            caller = await self._caller(scope, headers, target)
        if caller.key_id is None or caller.cookie is not None:
            refuse_embedded(headers)
        if scope["type"] == "websocket" or (caller.cookie is not None and scope["method"] not in ("GET", "HEAD")):
            by_cookie = caller.cookie is not None
            self._origins.check_page(headers, needed=by_cookie, wildcard=not by_cookie and caller.key_id is not None)
        if target is not None:
            _check_role(caller, target)
            if target.params and caller.role is Role.USER:
                await self._check_in_reach(caller, target.params)
        return caller

    async def _check_in_reach(self, caller: Caller, params: dict[str, Any]) -> None:
        """Raise unless what the path names belongs to the caller's user."""
        if "job_id" in params:
            await check_job_in_reach(self._fairlead, caller, _id_in(params, "job_id"))
        if "batch_id" in params:
            await check_batch_in_reach(self._fairlead, caller, _id_in(params, "batch_id"))
        if "file_id" in params:
            await check_file_in_reach(self._fairlead, caller, str(params["file_id"]))
        if "turn_id" in params:
            await check_turn_in_reach(self._fairlead, caller, _id_in(params, "turn_id"))

    def _refuse_key_in_url(self, scope: Scope) -> None:
        """Refuse a key in the URL on every route, since proxies and browsers store URLs."""
        query, path = scope["query_string"], scope["path"]
        if not query and "_" not in path and self._long_admin_key is None:
            return
        text = path + "?" + unquote_to_bytes(query).decode("latin-1")
        if KEY_PATTERN.search(text) or (self._long_admin_key is not None and self._long_admin_key in text):
            scope[KEY_IN_URL] = True
            raise Unauthorized("a key must not be in a URL, where it is logged: revoke it, and send keys as a header")

    # ------------------------------------------------------------ authentication

    async def _caller(self, scope: Scope, headers: dict[bytes, bytes], target: Target | None) -> Caller:
        authorization = headers.get(b"authorization")
        if authorization is not None:
            return await self._of_key(authorization)
        if target is not None and target.stream and b"ticket=" in scope["query_string"]:
            return await self._of_ticket(scope["query_string"])
        cookie = cookie_in(headers)
        if cookie is not None:
            return await self._of_cookie(cookie)
        raise Unauthorized("send the key as 'Authorization: Bearer <key>'")

    async def _of_key(self, authorization: bytes) -> Caller:
        scheme, _, key = authorization.partition(b" ")
        text = key.strip()
        # compare_digest comes first, so that the duration of the check does not depend on the key.
        if self._admin_key is not None and compare_digest(text, self._admin_key) and scheme.lower() in SCHEMES:
            return ENVIRONMENT
        if scheme.lower() in SCHEMES:
            if self.key_cache.old:
                await self.key_cache.renew()
            known = await self.key_cache.find(text.decode("latin-1"))
            if known is not None:
                return _caller(known)
        if self._admin_key is None and self.key_cache.empty:
            raise Unauthorized("this key is unknown; the gateway has no keys and needs none: leave it out")
        raise Unauthorized("this key is unknown or revoked; send a valid one as 'Authorization: Bearer <key>'")

    async def sign_in(self, connection: HTTPConnection, key: str) -> tuple[Caller, str]:
        """Open a session for the dashboard. Returns the caller that the key belongs to, and the secret of the session
        for the cookie."""
        self._origins.check_page(headers_of(connection.scope))
        address = network_of(connection.scope)
        self._wrong_keys.take(address, "too many wrong keys from this address; try again later")
        try:
            caller = await self._of_key(b"Bearer " + key.encode("latin-1", "replace"))
        except Unavailable:
            self._wrong_keys.give_back(address)
            raise
        self._wrong_keys.give_back(address)
        self._sign_ins.take(str(caller.key_id), "too many sign-ins with this key; try again later")
        return caller, await self._fairlead.open_session(self._session_key(caller))

    def _session_key(self, caller: Caller) -> str:
        """Return the key id to store with a session. For the admin key of the environment, the id contains a hash of
        the key: after a restart with another admin key, the sessions of the former key are no longer valid."""
        if caller.key_id != ENVIRONMENT.key_id or self._admin_key is None:
            return str(caller.key_id)
        return f"{ENVIRONMENT.key_id}:{secret_hash(self._admin_key.decode())[:16]}"

    async def _of_cookie(self, cookie: str) -> Caller:
        key_id = await self.cookies.key_of(cookie)
        caller = None
        if key_id is not None and self._admin_key is not None and key_id == self._session_key(ENVIRONMENT):
            caller = ENVIRONMENT
        elif key_id is not None:
            caller = await self._of_key_id(key_id)
        if caller is None:
            raise Unauthorized("this session has ended; sign in again")
        return replace(caller, cookie=cookie)

    async def _of_ticket(self, query: bytes) -> Caller:
        tickets = parse_qs(query.decode("latin-1")).get("ticket", [])
        grant = await self._fairlead.use_ticket(tickets[0]) if len(tickets) == 1 else None
        caller = await self._of_grant(grant) if grant is not None else None
        if caller is None:
            raise Unauthorized("this ticket is unknown, used, or older than a minute; request a new one")
        return caller

    async def _of_url_ticket(self, query: bytes, target: Target) -> Caller:
        """Return the caller of a URL with a ticket for one file, or for the stream of one job: a reader of its user.
        With the ticket of an upload, the caller is that user."""
        tickets = parse_qs(query.decode("latin-1")).get("ticket", [])
        of_job = target.ticketed == "job_id"
        name = _id_in(target.params, "job_id") if of_job else str(target.params["file_id"])
        uploads = not target.read_only
        subject = stream_subject(name) if of_job else UPLOADS_OF + name if uploads else name
        files = self._fairlead.files
        if len(tickets) != 1 or not await files.is_valid_ticket(subject, tickets[0]):
            what = "prediction" if of_job else "file"
            raise Unauthorized(
                f"the ticket of this URL has expired, or is for another {what}; request the {what} again"
            )
        owner = await self._fairlead.owner_of(name) if of_job else (await files.get(name)).user_id
        if owner is None:
            raise NotFound(f"there is no job {name}")
        return Caller(Role.USER, owner, f"the ticket of a {target.ticketed}", URL_TICKET, onlooker=not uploads)

    async def _of_grant(self, grant: str) -> Caller | None:
        """Return the caller for whom a ticket was issued, or None if that caller's key has been revoked. `grant` is the
        text that is stored with the ticket (see `grant_of`)."""
        key_id, _, user_id = grant.partition(":")
        if key_id == ENVIRONMENT.key_id:
            caller = ENVIRONMENT if self._admin_key is not None else None
        else:
            caller = await self._of_key_id(key_id)
        if caller is not None and user_id:
            return replace(caller, role=Role.USER, user_id=user_id, onlooker=not caller.may_act)
        return caller

    async def _of_key_id(self, key_id: str) -> Caller | None:
        """Return the caller with the key of this id, or None if the key does not exist or was revoked."""
        if self.key_cache.old:
            await self.key_cache.renew()
        key = self.key_cache.get(key_id)
        return _caller(key) if key is not None and key.revoked_at is None else None

    def _is_live(self, key_id: str | None) -> bool:
        if key_id is None:
            return self.key_cache.empty
        if key_id in (ENVIRONMENT.key_id, URL_TICKET):
            return True
        key = self.key_cache.get(key_id)
        return key is not None and key.revoked_at is None


_NEEDED = {
    Access.ANY: "a key",
    Access.SERVICE: "a service's or an admin's key",
    Access.ADMIN: "an admin's key",
}


def _check_role(caller: Caller, target: Target) -> None:
    access = target.access
    if access is None:
        raise Forbidden("this route has no access rule")
    if caller.role is Role.VIEWER:
        if not target.read_only:
            raise Forbidden("a viewer's key is read-only")
        return
    if caller.role is not Role.ADMIN and not access.admits(caller.role):
        raise Forbidden(f"this needs {_NEEDED[access]}; yours has the role {caller.role}")


def _ends_with_key(target: Target, scope: Scope) -> bool:
    """Return whether this request must be ended when its key is revoked. See `Lasts`."""
    if target.lasts is Lasts.IF_PREFERRED:
        return b"prefer" in headers_of(scope)
    return target.lasts is Lasts.ALWAYS


def guard_of(connection: HTTPConnection) -> Guard:
    guard: Guard = connection.app.state.guard
    return guard


def grant_of(caller: Caller, user_id: str | None) -> str:
    """Return the text that is stored with a ticket and identifies its caller: the id of the caller's key, followed by
    `:` and a user id if the ticket is restricted to one user.

    While there are no keys, the caller's name is stored instead of a key id. The name matches no key, so the ticket is
    no longer valid once a key exists.
    """
    key_id = caller.key_id or caller.name
    return key_id if user_id is None else f"{key_id}:{user_id}"


def _caller(key: Key) -> Caller:
    return Caller(key.role, key.user_id, key.name, key.id)


def _id_in(params: dict[str, Any], name: str) -> str:
    """Parse the id in a path exactly as the routes do. Otherwise a different spelling of another user's id could pass
    the guard's check."""
    try:
        return str(UUID(str(params[name])))
    except ValueError:
        raise InvalidInput(f"{name}: should be a valid UUID", pointer=f"/{name}") from None
