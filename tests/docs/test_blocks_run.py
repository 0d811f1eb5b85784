"""The code blocks of all pages run: commands against a running gateway, Python in a running application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import openai
import pytest
import yaml
from standardwebhooks import Webhook
from tests.docs.stage import INPUT, JOB, ROOT, Drawn, Model, Stage, blocks, commands, opened

import fairlead
from fairlead import Call, Client, Fairlead, NotFound, WrongState

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/how-to").glob("*.md"))]
PAGES = [page for page in PAGES if page.name != "tutorial.md"]  # tests/docs/test_tutorial.py follows it
SHELL = ("sh", "console")
LANGUAGES = {*SHELL, "python", "toml", "json", "yaml", "js", "sql", "text"}
NOT_RUN = {
    "make run": "installs into .venv; tests/integration/test_sample_project.py runs the project",
    "python examples/chatbot/run.py": "tests/integration/test_chatbot.py runs it",
}
"""Commands that do not run here, and why. The blocks in JavaScript are parsed only: they are for browsers, or for
clients that tests/integration/test_*_npm.py runs. Those in `text` are outputs and pictures."""
SCRIPTS = {
    "celery.md": "from fairlead import Fairlead\nimport celery\n"
    "celery_app, fairlead_app = celery.Celery('proj'), Fairlead()",
    "fal.md": "",
    "replicate.md": "",
}
"""Pages whose Python is a program of its own, because it patches Celery, or because clients read the environment when
they are imported; with what it takes for granted."""
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def pages_with(*languages: str, of: list[Path] = PAGES) -> Any:
    found = [page for page in of if any(language in languages for language, _, _ in blocks(page))]
    return pytest.mark.parametrize("page", found, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as stage:
        monkeypatch.setenv("FAIRLEAD_URL", stage.url)
        yield stage


def test_every_block_has_a_language() -> None:
    pages = [*PAGES, *(ROOT / "docs/adr").glob("*.md")]
    found = {(page.name, language) for page in pages for language, _, _ in blocks(page)}
    assert {each for each in found if each[1] not in LANGUAGES} == set()


@pytest.mark.timeout(300)  # the page with all routes has two hundred commands
@pages_with(*SHELL)
async def test_commands_run(page: Path, stage: Stage) -> None:
    failed: list[str] = []
    # Sockets first: this client sends no key, and pages create keys further down.
    for language, title, body in sorted(blocks(page), key=lambda block: "-m websockets" not in block[2]):
        if title:
            (stage.folder / title).write_text(body, encoding="utf-8")
        if language in SHELL:
            lines = [command for command in commands(body, language) if can_run(command)]
            typed = "\n".join(line.removeprefix("> ") for line in lines if line.startswith("> "))
            for command in lines:
                if not command.startswith("> "):
                    try:
                        await stage.command(command, typed)
                    except Exception as error:
                        failed.append(f"{command}\n{type(error).__name__}: {error}")
    assert not failed, "\n\n".join(failed)


def can_run(command: str) -> bool:
    return command not in NOT_RUN and not (re.search(r"\bjq\b", command) and shutil.which("jq") is None)


def test_only_commands_that_exist_are_left_out() -> None:
    found = {
        command
        for page in PAGES
        for language, _, body in blocks(page)
        if language in SHELL
        for command in commands(body, language)
    }
    assert NOT_RUN.keys() <= found


@pages_with("python", of=[page for page in PAGES if page.parent.name != "how-to"])
async def test_python_runs(page: Path, stage: Stage) -> None:
    code = [body for language, _, body in blocks(page) if language == "python"]
    if page.name in SCRIPTS:
        for language, _, body in blocks(page):
            for command in commands(body) if language == "sh" and page.name != "celery.md" else ():
                await stage.command(command)
        await stage.script("\n".join([SCRIPTS[page.name], *code]))
        return
    failed: list[str] = []
    with contextlib.ExitStack() as stack:
        names = names_on(page, stage, stack)
        for body in code:
            try:
                await stage.python(body, names)
            except Exception as error:
                failed.append(f"{body}\n{type(error).__name__}: {error}")
    assert not failed, "\n\n".join(failed)


def names_on(page: Path, stage: Stage, stack: contextlib.ExitStack) -> dict[str, Any]:
    """What the names that a page takes for granted stand for."""
    if page.name == "openai.md":
        client: Any = stack.enter_context(openai.OpenAI(base_url=f"{stage.url}/v1", api_key="any", max_retries=0))
    else:
        client = stack.enter_context(Client(stage.url))
    now = datetime.now(UTC)
    signed = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(SECRET).sign("msg_1", now, "{}"),
    }

    async def answer(*_: Any) -> Any:
        return (
            SimpleNamespace(paying=True)
            if page.name == "priority.md"
            else b"a picture"
            if page.name == "files.md"
            else ""
        )

    async def generate(prompt: str) -> AsyncIterator[str]:
        for word in prompt.split():
            yield word

    return {
        "Call": Call, "Client": Client, "Fairlead": Fairlead, "NotFound": NotFound, "Path": Path,
        "WrongState": WrongState, "accounts": SimpleNamespace(find=answer), "body": "{}", "client": client,
        "describe": answer, "fairlead": fairlead, "flux": Model(), "headers": signed, "key": None,
        "messages": INPUT["messages"], "model": SimpleNamespace(generate=generate), "model_is_loading": answer,
        "paint": answer, "prompt": Drawn("a harbour"), "request": SimpleNamespace(user=SimpleNamespace(id=42)),
        "saved": [(JOB, "a cat", 42)], "secret": SECRET, "show": lambda position: None, "sleep": shortly,
        "time": SimpleNamespace(sleep=shortly),
        "tracer": SimpleNamespace(start_as_current_span=lambda name: contextlib.nullcontext()),
    }  # fmt: skip


def shortly(seconds: float) -> None:
    time.sleep(0.02)


@pages_with("json", "yaml")
def test_data_can_be_parsed(page: Path) -> None:
    for language, _, body in blocks(page):
        if language == "json":
            json.loads(body)
        elif language == "yaml":
            list(yaml.safe_load_all(body))


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_javascript_can_be_parsed(tmp_path: Path) -> None:
    found = [body for page in PAGES for language, _, body in blocks(page) if language == "js"]
    whole = (
        "\n".join(f"async () => {{\n{body}\n}};" for body in found)
        .replace("import {", "const {")
        .replace("} from", "} =")
    )
    (tmp_path / "blocks.mjs").write_text(whole, encoding="utf-8")
    checked = subprocess.run(
        ["node", "--check", "blocks.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


@pages_with("sql")
async def test_sql_runs(page: Path, emptied_database: str) -> None:
    async with Fairlead(database_url=emptied_database):
        connection = await asyncpg.connect(emptied_database)
        try:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("CREATE ROLE monitoring")
            for language, _, body in blocks(page):
                if language == "sql":
                    await connection.execute(body)
            await transaction.rollback()
        finally:
            await asyncio.wait_for(connection.close(), 10)
