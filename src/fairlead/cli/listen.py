"""Binds the listening sockets of a process. A process binds them before it opens anything else, so that it fails early
if a port is in use."""

from __future__ import annotations

import errno
import ipaddress
import socket

from fairlead.cli.failure import Exit, Failure

BACKLOG = 2048

Address = tuple[socket.AddressFamily, tuple[str | int, ...]]


def is_local(host: str, port: int) -> bool:
    """Return whether only programs on this machine can connect to the address."""
    return _all_loopback(_resolve(host, port))


def bind(host: str, port: int, *, has_key: bool, option: str = "--port") -> list[socket.socket]:
    """Bind one listening socket for each address of `host`. Raises a Failure if `host` is not a loopback address and
    there is no key."""
    addresses = _resolve(host, port)
    if not has_key and not _all_loopback(addresses):
        raise Failure(
            f"will not listen on {host} without a key: anyone who can reach this machine could submit and read jobs. "
            "Create an admin key with `fairlead keys create --role admin` (or set FAIRLEAD_ADMIN_KEY), "
            "or listen on 127.0.0.1",
            Exit.USAGE,
        )
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            # With port 0 the system picks a port for the first address; the other addresses use the same port.
            number = sockets[0].getsockname()[1] if sockets and port == 0 else port
            sockets.append(_bound(family, (address[0], number, *address[2:])))
    except OSError as error:
        for opened in sockets:
            opened.close()
        raise Failure(_explain(error, host, port, option)) from None
    return sockets


def _all_loopback(addresses: list[Address]) -> bool:
    return all(ipaddress.ip_address(str(address[0])).is_loopback for _, address in addresses)


def _resolve(host: str, port: int) -> list[Address]:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise Failure(f"cannot listen on {host}: {error}", Exit.USAGE) from None
    known: dict[Address, None] = {}
    for family, _, _, _, address in infos:
        known[family, (str(address[0]), *(int(part) for part in address[1:]))] = None
    # A name like localhost may resolve to an IPv6 address that this machine does not have.
    return [each for each in known if len(known) == 1 or _exists(*each)] or list(known)


def _exists(family: socket.AddressFamily, address: tuple[str | int, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


def _bound(family: socket.AddressFamily, address: tuple[str | int, ...]) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol of the socket is explicitly TCP.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        # Listen now, so that a second `up` fails here. Clients that connect before the gateway is ready wait in the
        # backlog.
        opened.listen(BACKLOG)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _explain(error: OSError, host: str, port: int, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another with {option}, or stop the process that uses it"
    if error.errno == errno.EACCES:
        return f"this user may not listen on port {port}; choose one above 1023 with {option}"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"


def url_of(listening: socket.socket, scheme: str = "http") -> str:
    """Return the URL at which clients on this machine reach a listening socket."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return _url(scheme, host, port)


def bound_to(listening: socket.socket, scheme: str) -> str:
    """Return a URL with the address that a socket is bound to. This may be 0.0.0.0, which clients cannot use."""
    return _url(scheme, *listening.getsockname()[:2])


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
