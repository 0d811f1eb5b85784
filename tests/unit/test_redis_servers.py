"""The Redis servers of the tests."""

from __future__ import annotations

import socket

import pytest
from tests.redis_servers import PortTaken, Server


def test_a_server_whose_cluster_bus_port_is_taken_gets_another_port() -> None:
    server = Server("--cluster-enabled", "yes")
    first = server.port
    with socket.create_server(("127.0.0.1", first + 10_000)):
        server.start()
    assert server.port != first
    assert server.client.ping()
    server.kill()


def test_a_server_that_is_restarted_keeps_its_port() -> None:
    server = Server().start()
    port = server.port
    server.kill()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        with pytest.raises(PortTaken):
            server.start()
    server.start()
    assert server.port == port
    server.kill()
