"""`make run`: starts the sample services and `fairlead up` in front of them. Ctrl-C stops both.

PORT=8123 SCALE=0.5 python examples/cao/run.py
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import aiohttp
from services import Services, scale_from_environment

HERE = Path(__file__).resolve().parent
DATA = HERE.parent.parent / "data"

NEXT = """\
Open the dashboard:

  {url}/

Submit a job:

  curl -s {url}/api/v1/jobs -H 'Content-Type: application/json' \\
    -d '{{"user_id": "ada", "feature_name": "full_pipeline", "input_data": {{"prompt": "a lighthouse at dawn"}}}}'

Watch it, with the job_id of the response:

  curl -N {url}/api/v1/jobs/JOB_ID/events

Or use the command line, in another terminal:

  export FAIRLEAD_URL={url}
  {fairlead} submit full_pipeline '{{"prompt": "a lighthouse at dawn"}}' --user ada --wait
  {fairlead} status --watch

Services (their own counts, to check the limits by):
{services}

Ctrl-C stops everything.
"""


async def main() -> int:
    port = _port_from_environment()
    if not _is_free(port):
        # Checked here: otherwise the gateway that listens there would be mistaken for ours.
        other = next((each for each in (8000, 8123, *range(8001, 9000)) if _is_free(each)), 9000)
        print(f"port {port} is in use; choose another: PORT={other} make run", file=sys.stderr)
        return 1
    async with Services(scale_from_environment(), free_ports=True) as services:
        up = await _start_fairlead(port, services.urls)
        _forward_signals(up)
        # It becomes ready, or prints to stderr why it cannot.
        ready = asyncio.create_task(_until_ready(f"http://127.0.0.1:{port}"))
        ended = asyncio.create_task(up.wait())
        await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            print(_what_next(port, services.urls), flush=True)
        ready.cancel()
        return await ended


async def _start_fairlead(port: int, urls: dict[str, str]) -> asyncio.subprocess.Process:
    environment = {f"FAIRLEAD_SERVICES__{name.upper()}__URL": f"{url}/v1/execute" for name, url in urls.items()}
    environment |= os.environ
    if "DATABASE_URL" not in environment:
        DATA.mkdir(exist_ok=True)
        environment["DATABASE_URL"] = f"sqlite:///{DATA / 'sample.db'}"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fairlead.cli", "up"),
        *("--config", str(HERE / "fairlead.toml"), "--port", str(port)),
        env=environment,
        # Its own session: Ctrl-C reaches only us, and we forward it once, while the services are still running.
        start_new_session=True,
    )


def _port_from_environment() -> int:
    text = os.environ.get("PORT") or "8000"
    if not (text.isdecimal() and 0 < int(text[:6]) <= 65535):
        sys.exit(f"PORT should be a number from 1 to 65535, not {text!r}")
    return int(text)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _forward_signals(up: asyncio.subprocess.Process) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if up.returncode is None:
            up.send_signal(number)

    loop.add_signal_handler(signal.SIGINT, stop, signal.SIGINT)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, signal.SIGTERM)


async def _until_ready(url: str) -> None:
    async with aiohttp.ClientSession() as client:
        while True:
            try:
                async with client.get(f"{url}/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


def _what_next(port: int, urls: dict[str, str]) -> str:
    services = "\n".join(f"  {name:<16} {url}/stats" for name, url in urls.items())
    return NEXT.format(url=f"http://127.0.0.1:{port}", services=services, fairlead=_command())


def _command() -> str:
    """The command beside this interpreter, as one types it in this directory."""
    script = Path(sys.executable).with_name("fairlead")
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
