"""Who asks, and may they?

A key comes as `Authorization: Bearer`, and never in a URL, where proxies and browsers keep it; WebSockets and event
streams of browsers, which cannot send headers, take a ticket that is good once. While there is no key at all, neither
in the truth nor as `FAIRLEAD_ADMIN_KEY`, we listen on loopback only, where the danger is the user's own browser: a page
from elsewhere that posts to us, or whose name was re-pointed to 127.0.0.1 (DNS rebinding). So then the connection must
have come in on loopback, the Host must be ours, and an Origin must be the same host or an allowed one. A WebSocket's
Origin is always checked: browsers open them to anywhere.

A browser that signed in to the dashboard sends a cookie, which browsers add by themselves whoever asks them to: so what
changes something, and every WebSocket, must then come with an Origin that is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit
from uuid import UUID

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.domain import keytext
from fairlead.domain.keys import Key, Role
from fairlead.errors import InvalidInput, RequestError, Unavailable
from fairlead.gateway.access import (
    CALLER,
    ENVIRONMENT,
    KEYLESS,
    WEBSOCKET,
    Access,
    Caller,
    all_routes,
    check_batch_in_reach,
    check_job_in_reach,
    check_turn_in_reach,
    is_stream,
    may_wait,
    only_looks,
    rule_of,
)
from fairlead.gateway.cookies import Cookies, cookie_in
from fairlead.gateway.frame import headers_of
from fairlead.gateway.keyring import Keyring
from fairlead.gateway.problems import CrossSite, Forbidden, Unauthorized, WrongHost, problem_response

if TYPE_CHECKING:
    from fairlead.app import Fairlead

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
MANY = 100
_NOT_A_HOST = frozenset("@/?#\\")

# What a WebSocket that is refused is closed with, where the server cannot answer with an HTTP status.
CLOSE_CODES = {401: 4401, 403: 4403, 404: 4404, 421: 4403, 422: 4422, 503: 1013}


class Target(NamedTuple):
    """A route, as far as the guard is concerned. `access` None: it has no rule, and nobody may."""

    access: Access | None
    stream: bool
    waits: bool
    looks: bool
    params: dict[str, Any]


class Guard:
    """`routes` are those behind it."""

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
        self._admin_key = fairlead.settings.admin_key.encode() if fairlead.settings.admin_key else None
        self._routes = list(all_routes(list(routes)))
        # Most requests are for paths without parameters, and these need no search.
        self._plain = {
            (method, path): self._search(method, _bare(method, path))
            for methods, path, _ in self._routes
            for method in methods
            if "{" not in path
        }
        self._hosts = LOOPBACK_HOSTS | {host.lower().strip("[]")}
        self._origins = frozenset(allowed_origins)
        # Host headers that passed; clients repeat the same few, and parsing one costs more than all other checks.
        self._passed: set[tuple[bytes, str | None]] = set()
        self.ring = Keyring(fairlead.keys, fairlead.count_keys, self._is_live)
        self.cookies = Cookies(fairlead.session)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            target = self._target(scope)
            caller = await self._admitted(scope, target)
        except (RequestError, Unavailable) as error:
            await _refuse(error, scope, receive, send)
            return
        if caller is not None:
            scope[CALLER] = caller
        if caller is not None and target is not None and _lasts(target, scope):
            await self._stream(caller, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    # ------------------------------------------------------------ may they?

    def _target(self, scope: Scope) -> Target | None:
        """The route that the router will choose. None: there is none, and the router says so."""
        method = scope["method"] if scope["type"] == "http" else WEBSOCKET
        if not scope.get("root_path"):
            found = self._plain.get((method, scope["path"]))
            if found is not None:
                return found
        return self._search(method, scope)

    def _search(self, method: str, scope: Scope) -> Target | None:
        found = None
        for methods, path, route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                params = child.get("path_params", {})
                return Target(
                    rule_of(method, path),
                    is_stream(method, path),
                    may_wait(method, path),
                    only_looks(method, path),
                    params,
                )
            if match is Match.PARTIAL and all(rule_of(known, path) is Access.OPEN for known in methods):
                found = Target(
                    Access.OPEN, stream=False, waits=False, looks=True, params={}
                )  # whoever may ask may hear how
        return found

    async def _admitted(self, scope: Scope, target: Target | None) -> Caller | None:
        """None: anybody, and it does not matter who."""
        headers = headers_of(scope)
        if target is not None and target.access is Access.OPEN:
            # Probes do not wait for the truth. Without keys they too are for this machine only.
            if self._admin_key is None and self.ring.empty:
                self._check_local(scope, headers)
                self._check_origin(headers)
            return None
        if self._admin_key is None and self.ring.old:
            await self.ring.renew()
        if scope["query_string"]:
            _refuse_key_in_url(scope["query_string"])
        # One of our keys counts although we know of none yet: a user's must not pass for the keyless, who may do all.
        if self._admin_key is None and self.ring.empty and b"fl_" not in headers.get(b"authorization", b""):
            self._check_local(scope, headers)
            self._check_origin(headers)
            caller = KEYLESS
        else:
            caller = await self._caller(scope, headers, target)
        if scope["type"] == "websocket" or (caller.cookie is not None and scope["method"] not in ("GET", "HEAD")):
            self._check_origin(headers, needed=caller.cookie is not None)
        if target is not None:
            _check_role(caller, target)
            if caller.role is Role.USER and "job_id" in target.params:
                await check_job_in_reach(self._fairlead, caller, _id_in(target.params, "job_id"))
            if caller.role is Role.USER and "batch_id" in target.params:
                await check_batch_in_reach(self._fairlead, caller, _id_in(target.params, "batch_id"))
            if caller.role is Role.USER and "turn_id" in target.params:
                await check_turn_in_reach(self._fairlead, caller, _id_in(target.params, "turn_id"))
        return caller

    # ------------------------------------------------------------ who?

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
        scheme, _, given = authorization.partition(b" ")
        given = given.strip()
        # compare_digest first: how long the check takes must not tell how much of a key was right.
        if self._admin_key is not None and compare_digest(given, self._admin_key) and scheme.lower() == b"bearer":
            return ENVIRONMENT
        if scheme.lower() == b"bearer":
            if self.ring.old:
                await self.ring.renew()
            key = await self.ring.find(given.decode("latin-1"))
            if key is not None:
                return _caller(key)
        raise Unauthorized("this key is not known, or was revoked; send one as 'Authorization: Bearer <key>'")

    async def sign_in(self, connection: HTTPConnection, key: str) -> tuple[Caller, str]:
        """Who has this key, and the secret of a new session of theirs."""
        self._check_origin(headers_of(connection.scope))
        caller = await self._of_key(b"Bearer " + key.encode("latin-1", "replace"))
        return caller, await self._fairlead.open_session(self._session_key(caller))

    def _session_key(self, caller: Caller) -> str:
        """The key that a session is kept for. That of the environment may be another one after the next start, and then
        opens what the new one opens to nobody who knew the old one."""
        if caller.key_id != ENVIRONMENT.key_id or self._admin_key is None:
            return str(caller.key_id)
        return f"{ENVIRONMENT.key_id}:{keytext.hash_of(self._admin_key.decode())[:16]}"

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
        given = parse_qs(query.decode("latin-1")).get("ticket", [])
        grant = await self._fairlead.use_ticket(given[0]) if len(given) == 1 else None
        caller = await self._of_grant(grant) if grant is not None else None
        if caller is None:
            raise Unauthorized("this ticket is not known, was used, or is older than a minute; get another")
        return caller

    async def _of_grant(self, grant: str) -> Caller | None:
        """See `grant_of`. None: its key was revoked since."""
        key_id, _, user_id = grant.partition(":")
        if key_id == ENVIRONMENT.key_id:
            caller = ENVIRONMENT if self._admin_key is not None else None
        else:
            caller = await self._of_key_id(key_id)
        if caller is not None and user_id:
            return replace(caller, role=Role.USER, user_id=user_id)
        return caller

    async def _of_key_id(self, key_id: str) -> Caller | None:
        """None: there is no such key in the truth, or it was revoked."""
        if self.ring.old:
            await self.ring.renew()
        key = self.ring.get(key_id)
        return _caller(key) if key is not None and key.revoked_at is None else None

    def _is_live(self, key_id: str | None) -> bool:
        if key_id is None:
            return self.ring.empty
        if key_id == ENVIRONMENT.key_id:
            return True
        key = self.ring.get(key_id)
        return key is not None and key.revoked_at is None

    # ------------------------------------------------------------ where from?

    def _check_local(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"")
        server = scope.get("server")
        # A socket in the file system has no port, and is of this machine.
        address = server[0] if server is not None and server[1] is not None else None
        if (host, address) in self._passed:
            return
        if address is not None and not _is_loopback(address):
            raise Unauthorized("without keys only this machine is served; make one with: fairlead keys create")
        if _hostname(host.decode("latin-1")) not in self._hosts:
            raise WrongHost("without a key this server answers only to its own host name, such as localhost")
        if len(self._passed) < MANY:
            self._passed.add((host, address))

    def _check_origin(self, headers: dict[bytes, bytes], *, needed: bool = False) -> None:
        """`needed`: whoever sends none is no page of ours, and a wildcard is meant for those who bring a key."""
        origin = headers.get(b"origin")
        if needed and origin is None:
            raise CrossSite("with a session's cookie, what changes something needs the header Origin")
        if origin is None or ("*" in self._origins and not needed):
            return
        text = origin.decode("latin-1")
        own_host = headers.get(b"host", b"").decode("latin-1").lower()
        if text not in self._origins and text.lower().partition("://")[2] != own_host:
            raise CrossSite("pages of this origin may not use this server; see server.allowed_origins")

    # ------------------------------------------------------------ streams

    async def _stream(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends with its key."""
        began = False

        async def noted(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            async with asyncio.timeout(None) as until:
                with self.ring.ends(until, caller.key_id), self.cookies.ends(until, caller.cookie):
                    await self.app(scope, receive, noted)
        except TimeoutError:
            if not until.expired():
                raise
            revoked = Unauthorized(
                "a key is needed now" if caller.key_id is None
                else "the key was revoked" if caller.cookie is None
                else "the session has ended"
            )  # fmt: skip
            # The client may have gone meanwhile, and then there is nobody to tell.
            with contextlib.suppress(Exception):
                if not began:
                    await _refuse(revoked, scope, receive, send)
                elif scope["type"] == "websocket":
                    await send({"type": "websocket.close", "code": CLOSE_CODES[401], "reason": revoked.message})
                else:
                    await send({"type": "http.response.body", "body": b": ended, unauthorized\n\n", "more_body": False})


_NEEDED = {
    Access.ANY: "a key",
    Access.SERVICE: "a service's or an admin's key",
    Access.ADMIN: "an admin's key",
}


def _check_role(caller: Caller, target: Target) -> None:
    access = target.access
    if access is None:
        raise Forbidden("this route has no rule that says who may use it")
    if caller.role is Role.VIEWER:
        if not target.looks:
            raise Forbidden("a viewer's key changes nothing; this needs another one")
        return
    if caller.role is not Role.ADMIN and not access.admits(caller.role):
        raise Forbidden(f"this needs {_NEEDED[access]}; yours is of the role {caller.role}")


def _lasts(target: Target, scope: Scope) -> bool:
    """Whether its key may be revoked before it has been answered."""
    return target.stream or (target.waits and b"prefer" in headers_of(scope))


def guard_of(connection: HTTPConnection) -> Guard:
    guard: Guard = connection.app.state.guard
    return guard


def grant_of(caller: Caller, user_id: str | None) -> str:
    """What a ticket stands for: a key, or a key that acts for one user only. One that is made without keys opens
    nothing later; as long as there are none, nobody looks at it."""
    key_id = caller.key_id or caller.name
    return key_id if user_id is None else f"{key_id}:{user_id}"


def _caller(key: Key) -> Caller:
    return Caller(key.role, key.user_id, key.name, key.id)


async def _refuse(error: RequestError | Unavailable, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await problem_response(error, scope)(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": CLOSE_CODES.get(error.status, 1008), "reason": error.code})


def _refuse_key_in_url(query: bytes) -> None:
    if keytext.KEY.search(unquote_to_bytes(query).decode("latin-1")):
        raise Unauthorized("a key must not be in a URL, where it is logged: revoke it, and send keys as a header")


def _bare(method: str, path: str) -> Scope:
    """As little of a request as the router needs to find a route."""
    kind = "websocket" if method == WEBSOCKET else "http"
    return {"type": kind, "method": method, "path": path, "root_path": "", "headers": []}


def _id_in(params: dict[str, Any], name: str) -> str:
    """The way the routes read it: a form that only one of us understood would pass unseen."""
    try:
        return str(UUID(str(params[name])))
    except ValueError:
        raise InvalidInput(f"{name}: should be a valid UUID", pointer=f"/{name}") from None


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    # How a socket for both kinds of addresses has those of the older one.
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _hostname(host: str) -> str | None:
    """Of a Host header, which is a name and a port, nothing else: of `evil.example@localhost` a URL takes the end."""
    if not _NOT_A_HOST.isdisjoint(host):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
