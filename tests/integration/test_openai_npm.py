"""The npm clients `openai` and `@ai-sdk/openai-compatible`, unmodified. They are installed into a temporary folder."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.integration.openai_site import HELLO, open_front
from tests.openai_upstream import WORDS
from tests.servers import missing

SCRIPT = Path(__file__).parent / "openai_client.mjs"
PACKAGES = ("openai@6.49.0", "@ai-sdk/openai-compatible@2.0.87", "ai@6.0.326")
TEXT = "".join(WORDS)


async def run(*command: str | Path, cwd: Path) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def install(folder: Path, script: Path, *packages: str) -> Path:
    """Copy a script into a folder, and install the packages that it uses there."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("Node.js is not installed")
    shutil.copy(script, folder / script.name)
    command = ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", folder)
    code, _, err = await run(*command, *packages, cwd=folder)
    if code:
        missing(f"npm cannot install the clients: {err[-500:]}")
    return folder


@pytest.fixture
async def packages(tmp_path: Path) -> Path:
    return await install(tmp_path, SCRIPT, *PACKAGES)


@pytest.mark.slow
async def test_the_npm_clients_work_unmodified(packages: Path) -> None:
    async with open_front(packages, service={"limit": 1}) as front, front.client() as other:
        front.upstream.gate.clear()
        first = asyncio.create_task(other.chat.completions.create(model="llama", messages=HELLO))
        await front.upstream.reaches(open=1)
        asked = asyncio.create_task(run("node", SCRIPT.name, front.url, cwd=packages))
        while len((await front.app.list_jobs(user_id="ada")).data) < 1 and not asked.done():
            await asyncio.sleep(0.05)
        front.upstream.gate.set()
        code, out, err = await asked
        await first
    assert code == 0, err
    got = json.loads(out)
    assert got.pop("job")
    assert got == {
        "models": ["llama"],
        "chat": TEXT,
        "stream": TEXT,
        "embedding": [1.0, 2.0],
        "response": TEXT,
        "background": ["queued", "completed", TEXT],
        "resumed": [TEXT, True],
        "cancelled": "completed",
        "image": "png",
        "unknown": ["NotFoundError", 404, "model_not_found"],
        "batch": ["completed", 1, "a"],
        "batched": TEXT,
        "files": [["batch", "equests.jsonl"], ["batch_output", "_output.jsonl"]],
        "expiry": 3600,
        "deleted": True,
        "generated": TEXT,
        "streamed": TEXT,
    }
