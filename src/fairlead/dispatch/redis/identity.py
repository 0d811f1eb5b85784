"""Which server is at the other end, asked on every new connection right after login, before anything else is sent.

A server that was restarted has another run id; one that followed another, or was promoted, another replication id. Then
it may have lost anything, or know things from long ago, and only a rebuild makes it right.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from fairlead.dispatch.redis.errors import NOT_OURS, WrongServer

Admit = Callable[[str], bool]
"""Whether a server of this identity is one that the truth names. Called from the heartbeat's thread as well."""

_ASKED = (("INFO", "server"), ("INFO", "replication"))
_RUN_ID = re.compile(rb"run_id:(\w+)")
_REPLICATION_ID = re.compile(rb"master_replid:(\w+)")


def identity_of(run_id: bytes, replication_id: bytes) -> str:
    return f"{run_id.decode()}/{replication_id.decode()}"


def on_connect(admit: Admit) -> Callable[[Any], Awaitable[None]]:
    """What an asynchronous connection does when it is new."""

    async def log_in_and_compare(connection: Any) -> None:
        await connection.on_connect()
        await connection.send_packed_command(connection.pack_commands(_ASKED), check_health=False)
        _compare(admit, await connection.read_response(), await connection.read_response())

    return log_in_and_compare


def on_connect_sync(admit: Admit) -> Callable[[Any], None]:
    def log_in_and_compare(connection: Any) -> None:
        connection.on_connect()
        connection.send_packed_command(connection.pack_commands(_ASKED), check_health=False)
        _compare(admit, connection.read_response(), connection.read_response())

    return log_in_and_compare


def _compare(admit: Admit, server: bytes, replication: bytes) -> None:
    run_id, replication_id = _RUN_ID.search(server), _REPLICATION_ID.search(replication)
    if run_id is None or replication_id is None or not admit(identity_of(run_id[1], replication_id[1])):
        raise WrongServer(NOT_OURS)
