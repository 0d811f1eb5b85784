"""The network between the processes and Redis: a small TCP proxy in a separate process.

    target PORT    close open connections, and connect new ones to this port
    cut            reset every connection, and refuse new ones, until `heal`
    hole           keep connections open but pass no data in either direction, until `heal`
    heal           forward as usual

Each connection to the control port carries one command; the reply is `ok`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.chaos.process import Process, free_port, until_listening

CHUNK = 65536


class Proxy:
    def __init__(self, target: int) -> None:
        self._target = target
        self._refuses = False
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        words = (await reader.readline()).decode().split()
        if words:
            self.command(*words)
            writer.write(b"ok\n")
        with suppress(OSError):
            await writer.drain()
        writer.close()

    def command(self, verb: str, value: str = "") -> None:
        match verb:
            case "target":
                self._target = int(value)
                self._reset()
            case "cut":
                self._refuses = True
                self._reset()
            case "hole":
                self._open.clear()
            case "heal":
                self._refuses = False
                self._open.set()

    def _reset(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        self._writers.add(writer)
        there_writer: asyncio.StreamWriter | None = None
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(there_writer)
            ways = [self._pump(reader, there_writer), self._pump(there_reader, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        except OSError:
            pass
        finally:
            for end in (writer, there_writer):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                writer.write(data)
                await writer.drain()


async def serve(port: int, control: int, target: int) -> None:
    proxy = Proxy(target)
    async with (
        await asyncio.start_server(proxy.carry, "127.0.0.1", port, backlog=1000) as carrying,
        await asyncio.start_server(proxy.control, "127.0.0.1", control),
    ):
        await carrying.serve_forever()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None
    return uvloop.new_event_loop


class ProxyProcess:
    """The proxy process, and the harness's side of its control port."""

    def __init__(self, folder: Path, target: int, env: Mapping[str, str]) -> None:
        self.port, self._control = free_port(), free_port()
        command = [sys.executable, "-m", "tests.chaos.proxy", *map(str, (self.port, self._control, target))]
        root = Path(__file__).parents[2]
        self.process = Process("proxy", command, cwd=root, env=env, log=folder / "proxy.log")
        self.process.start()
        until_listening(self.process, self._control)

    def tell(self, *words: object) -> None:
        with socket.create_connection(("127.0.0.1", self._control), timeout=10) as line:
            line.sendall((" ".join(map(str, words)) + "\n").encode())
            assert line.recv(16) == b"ok\n"


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve(*map(int, sys.argv[1:4])))
