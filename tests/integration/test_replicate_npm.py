"""The npm client `replicate`, unmodified, and the file objects of both clients, which need HTTPS."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.cli.failure import Exit
from tests.integration.cli_process import COMMAND, Up, fairlead, started
from tests.integration.replicate_site import PNG, client_of, open_site, replicate
from tests.integration.test_openai_npm import run
from tests.servers import missing
from tests.webhook_receiver import receiver

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import httpx

SCRIPT = Path(__file__).parent / "replicate_client.mjs"
PACKAGE = "replicate@1.4.0"
PROJECT = """
from fairlead import Call, Fairlead

app = Fairlead()


@app.service(limit=4)
async def draw(call: Call):
    return await call.save("picture.txt", call.params["prompt"].encode() * 3)
"""


@contextmanager
def secure(folder: Path) -> Iterator[tuple[Up, Path]]:
    """A gateway with HTTPS, and the certificate of its authority."""
    folder = folder / "secure"
    folder.mkdir()
    assert fairlead("certs", "dev", "certs", cwd=folder).code == Exit.OK
    (folder / "pictures.py").write_text(PROJECT, encoding="utf-8")
    files = ("--certfile", "certs/cert.pem", "--keyfile", "certs/key.pem")
    with started((*COMMAND, "up", "pictures:app", *files, "--port", "0", "--json"), cwd=folder) as process:
        process.banner = json.loads(process.wait_for('"process"'))
        process.url = process.banner["urls"]["gateway"][0]
        yield process, folder / "certs" / "ca.pem"


def test_outputs_are_file_objects_over_https(tmp_path: Path) -> None:
    with secure(tmp_path) as (gateway, authority):
        transport = httpx.HTTPTransport(verify=ssl.create_default_context(cafile=str(authority)))
        with client_of(gateway.url, transport=transport) as client:
            output = client.run("acme/draw", input={"prompt": "a cat "})
            assert isinstance(output, replicate.helpers.FileOutput)
            assert output.read() == b"".join(output) == b"a cat a cat a cat "
            assert output.url.startswith(f"{gateway.url}/files/")


@pytest.mark.slow
async def test_the_npm_client_works_unmodified(tmp_path: Path, embedded: dict[str, str]) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("Node.js is not installed")
    shutil.copy(SCRIPT, tmp_path / SCRIPT.name)
    (tmp_path / "picture.png").write_bytes(PNG)
    command = ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", tmp_path)
    code, _, err = await run(*command, PACKAGE, cwd=tmp_path)
    if code:
        missing(f"npm cannot install the client: {err[-500:]}")
    with secure(tmp_path) as (gateway, authority):
        async with open_site(embedded) as site, receiver() as hooks:
            site.talker.say("Hello ", "world", None)
            asked = asyncio.create_task(
                run(
                    *("env", f"NODE_EXTRA_CA_CERTS={authority}", "node", SCRIPT.name),
                    *(site.url, hooks.url, f"{gateway.url}/replicate/v1"),
                    cwd=tmp_path,
                )
            )
            delivery = asyncio.create_task(hooks.reaches(1))
            await asyncio.wait({asked, delivery}, return_when=asyncio.FIRST_COMPLETED)
            if delivery.done():
                (request,) = delivery.result()
                fields = {name: request.headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature")}
                written = tmp_path / "delivery.part"
                written.write_text(json.dumps({**fields, "body": request.text}))
                written.rename(tmp_path / "delivery.json")
            delivery.cancel()
            code, out, err = await asked
    assert code == 0, err
    assert json.loads(out) == {
        "run": ["one\ntwo", "three"],
        "seen": ["succeeded", "succeeded"],
        "version": ["one\ntwo", "three"],
        "drawn": "!",
        "inline": "string",
        "stream": ["Hello world", ["output", "done"]],
        "canceled": "canceled",
        "waited": "canceled",
        "failed": "Prediction failed: this input will never work",
        "unknown": ["ApiError", 404],
        "listed": 7,
        "webhook": [True, False, ["one\ntwo", "three"]],
        "output": ["FileOutput", "!!!"],
    }
