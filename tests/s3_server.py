"""An S3 server for tests: moto, in a process of its own."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import cache
from uuid import uuid4

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
PATIENCE = 60.0


@cache
def endpoint() -> str:
    """The address of the server, which runs until this process ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(_stop, process)
    os.environ.update(CREDENTIALS)
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return address
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > until or process.poll() is not None:
                raise
            time.sleep(0.05)


def new_bucket() -> str:
    """The URL of an empty bucket, as `ARTIFACTS_URL` has it."""
    name = f"bucket-{uuid4().hex}"
    request = urllib.request.Request(f"{endpoint()}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=10).close()
    return f"s3://{name}/prefix?endpoint={endpoint()}&region=us-east-1"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
