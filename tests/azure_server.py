"""Azure's Blob storage for tests: Azurite, in a process of its own. `npm install azurite` installs it, and
`FAIRLEAD_TEST_AZURITE=node_modules/.bin/azurite-blob` names it; without it, nothing is tested on Azure."""

from __future__ import annotations

import atexit
import base64
import hashlib
import hmac
import os
import socket
import subprocess
import time
import urllib.request
from email.utils import formatdate
from functools import cache
from urllib.parse import quote
from uuid import uuid4

PROGRAM = os.environ.get("FAIRLEAD_TEST_AZURITE")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every emulator of Azure's storage has."""
VERSION = "2021-08-06"
OCTETS = "application/octet-stream"
PATIENCE = 60.0


@cache
def endpoint() -> str:
    """The address of the account at the server, which runs until this process ends."""
    assert PROGRAM is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence")
    command = [PROGRAM, *where, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(process.kill)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            return f"http://127.0.0.1:{port}/{ACCOUNT}"
        except ConnectionError:
            if time.monotonic() > until or process.poll() is not None:
                raise
            time.sleep(0.05)


def new_bucket() -> str:
    """The URL of an empty container, as `ARTIFACTS_URL` has it."""
    name, date = f"container-{uuid4().hex}", formatdate(usegmt=True)
    signed = f"x-ms-date:{date}\nx-ms-version:{VERSION}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = "\n".join(("PUT", "", "", "", "", OCTETS, "", "", "", "", "", "", signed))
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": date, "x-ms-version": VERSION, "Content-Type": OCTETS}
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}"}
    url = f"{endpoint()}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, b"", headers, method="PUT"), timeout=10).close()
    return f"az://{name}/prefix?account_name={ACCOUNT}&account_key={quote(KEY, safe='')}&endpoint={endpoint()}"
