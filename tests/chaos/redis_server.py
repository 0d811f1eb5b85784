"""A Redis to kill, restart and replace. Its append-only file restores most of its data at a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis

from tests.chaos.process import Process, free_port, until_listening
from tests.redis_servers import require_program


class RedisServer:
    def __init__(self, folder: Path, name: str = "redis", *options: str) -> None:
        self.port = free_port()
        data = folder / f"{name}-data"
        data.mkdir()
        config = data / "redis.conf"
        config.write_text(
            f'port {self.port}\nbind 127.0.0.1\ndir "{data}"\nsave ""\nappendonly yes\nappendfsync everysec\n'
            "repl-diskless-sync-delay 0\n"
        )
        command = [require_program(), str(config), *options]
        self.process = Process(name, command, cwd=data, log=folder / f"{name}.log")
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=10, decode_responses=True)

    def start(self) -> None:
        self.process.start()
        until_listening(self.process, self.port)
        # It accepts connections before it has loaded its file.
        with self.client() as client:
            while self._loading(client):
                pass

    @staticmethod
    def _loading(client: redis.Redis) -> bool:
        try:
            client.ping()
        except redis.BusyLoadingError:
            return True
        return False

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        self.process.close()

    def ask(self, *command: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    # ------------------------------------------------------------ contents

    def grants(self) -> int:
        """The number of leases ever issued, according to this server."""
        with self.client() as client:
            counters = [client.hget(key, "counter") for key in client.scan_iter("fairlead:{*}:meta", count=1000)]
        return sum(int(str(counter)) for counter in counters if counter)

    def sizes(self, name: str) -> int:
        """The number of leases, holds or entries, over all scopes and services."""
        with self.client() as client:
            keys = list(client.scan_iter(f"fairlead:{{*}}:*{name}", count=1000))
            return sum(self._size(client, key) for key in keys if key.rpartition(":")[2] == name)

    @staticmethod
    def _size(client: redis.Redis, key: str) -> int:
        kind = client.type(key)
        return int(str(client.hlen(key) if kind == "hash" else client.zcard(key) if kind == "zset" else 0))

    def leader(self) -> str | None:
        name = self.ask("GET", "fairlead:leader") if self.process.alive else None
        return None if name is None else str(name)


def replica_of(primary: RedisServer, folder: Path, name: str) -> RedisServer:
    """A replica that has caught up."""
    replica = RedisServer(folder, name)
    replica.ask("REPLICAOF", "127.0.0.1", primary.port)
    return replica


def caught_up(replica: RedisServer) -> bool:
    with replica.client() as client:
        info: Any = client.info("replication")
    return bool(info.get("master_link_status") == "up")
