"""A PgBouncer in transaction mode in front of the tests' PostgreSQL, if `FAIRLEAD_TEST_PGBOUNCER` names its program.

Tests then pass URLs through the pooler to Fairlead, and use `direct` for their own connections. Debian's PgBouncer 1.18
does not support prepared statements, so the URLs turn them off.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

CHOICE = "FAIRLEAD_TEST_PGBOUNCER"
_START_S = 20.0
_CONFIG = """\
[databases]
* = host=127.0.0.1 port={server_port} user=fairlead
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
logfile = {folder}/log
pidfile = {folder}/pid
"""

_servers: dict[int, int] = {}
"""Ports of servers by the ports of their poolers."""


def chosen() -> str | None:
    """The configured program, or None. Raises if it does not exist."""
    name = os.environ.get(CHOICE)
    if not name:
        return None
    program = shutil.which(name)
    if program is None:
        raise RuntimeError(f"{CHOICE} names {name!r}, which is not a program; `apt install pgbouncer` installs one")
    return program


def pooled(program: str, url: str, user: str | None) -> str:
    """Start a pooler in front of the server at this URL, and return the URL through the pooler."""
    parts = urlsplit(url)
    assert parts.port is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    folder = Path(tempfile.mkdtemp(prefix="fairlead-pgbouncer-"))
    config = folder / "pgbouncer.ini"
    config.write_text(_CONFIG.format(server_port=parts.port, port=port, folder=folder))
    if user is not None:
        shutil.chown(folder, user)
    process = subprocess.Popen(
        [program, "-q", config], user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    atexit.register(_remove, process, folder)
    _until_listening(process, port, folder / "log")
    _servers[port] = parts.port
    return urlunsplit(parts._replace(netloc=f"fairlead@127.0.0.1:{port}", query="statement_cache_size=0"))


def direct(url: str) -> str:
    """The URL of the same database without the pooler."""
    parts = urlsplit(url)
    if parts.port not in _servers:
        return url
    return urlunsplit(parts._replace(netloc=f"fairlead@127.0.0.1:{_servers[parts.port]}", query=""))


def _until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no PgBouncer:\n{log.read_text() if log.exists() else ''}") from None
            time.sleep(0.02)


def _remove(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.send_signal(signal.SIGQUIT)
    process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)
