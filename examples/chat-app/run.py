"""Starts the model behind `fairlead up`, and the chat application. Ctrl-C stops both.

PORT=8080 GATEWAY_PORT=8000 python examples/chat-app/run.py
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


async def main() -> int:
    port, gateway = os.environ.get("PORT", "8080"), os.environ.get("GATEWAY_PORT", "8000")
    url = f"http://127.0.0.1:{gateway}"
    environment = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any"}
    fairlead = [sys.executable, "-m", "fairlead", "up", "model:app", "--port", gateway]
    uvicorn = [sys.executable, "-m", "uvicorn", "chat_site:site", "--port", port, "--log-level", "warning"]
    processes = [
        await asyncio.create_subprocess_exec(*command, cwd=HERE, env=environment) for command in (fairlead, uvicorn)
    ]
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: [each.terminate() for each in processes if each.returncode is None])
    ended = [asyncio.create_task(each.wait()) for each in processes]
    ready = asyncio.create_task(accepting(int(port), int(gateway)))
    await asyncio.wait([ready, *ended], return_when=asyncio.FIRST_COMPLETED)
    if not ready.cancel():
        print(f"chat: http://127.0.0.1:{port}/   dashboard: {url}/", flush=True)
    await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    for each in processes:  # one without the other is of no use
        if each.returncode is None:
            each.terminate()
    return max([await each.wait() for each in processes])


async def accepting(*ports: int) -> None:
    """Return when all of these ports accept connections."""
    for port in ports:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                break


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
