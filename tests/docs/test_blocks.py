"""The code blocks of all pages: Python uses calls and arguments that exist, configurations are valid, commands and
their options exist, and requests have routes. (test_blocks_run.py runs those of the site.)"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.routing import Match
from tests.docs.test_how_to import command_line

from fairlead import AsyncClient, Call, Fairlead
from fairlead.app.handle import BatchHandle, JobHandle
from fairlead.client.asynchronous import AsyncJob
from fairlead.client.asynchronous_batches import AsyncBatch
from fairlead.config import load
from fairlead.gateway.app import create_gateway

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
_BLOCK = re.compile(r"^```(\w*)(?: title=\"[^\"]+\")?\n(.*?)^```$", re.M | re.S)
GATEWAY = "http://127.0.0.1:8000"
CALL = Call(
    job_id="", step_index=0, total_steps=1, service="", feature_name="", user_id="", attempt=1, idempotency_key="",
    params_json="{}", context_json="{}", timeout=1.0,
)  # fmt: skip
APP = Fairlead()
KNOWN: dict[str, tuple[Any, ...]] = {
    "app": (APP,),
    "call": (CALL,),
    "client": (AsyncClient(GATEWAY),),
    "job": (JobHandle(APP, ""), AsyncJob),
    "batch": (BatchHandle(APP, ""), AsyncBatch),
}
"""What the names in the examples stand for."""
ELSEWHERE = re.compile(
    "no (plan|pool|service|pipeline or service) is called|environment variable .* is not set|cannot be imported|"
    "need a main Redis as well|no service has a price"
)
"""Problems of a block that shows a part of a configuration: it names what other parts declare."""


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in _BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


def with_blocks(*languages: str, pages: list[Path] | None = None) -> Any:
    found = [page for page in pages or PAGES if blocks(page, *languages)]
    return pytest.mark.parametrize("page", found, ids=lambda page: str(page.relative_to(ROOT)))


@with_blocks("python", "py")
def test_python_uses_what_exists(page: Path) -> None:
    known = known_on(page)
    for body in blocks(page, "python", "py"):
        tree = compile(body, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fairlead"):
                exec(compile(ast.Module([node], []), page.name, "exec"), {})
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
                assert any(hasattr(each, node.attr) for each in known[node.value.id]), f"{node.value.id}.{node.attr}"
            elif isinstance(node, ast.Call):
                check_arguments(node, known)


def known_on(page: Path) -> dict[str, tuple[Any, ...]]:
    """What names stand for on this page: where Celery or clients of other systems are shown, not for ours."""
    text = page.read_text(encoding="utf-8")
    foreign = {"app"} if page.name == "celery.md" else set()
    if not any(ours in text for ours in ("fairlead.Client(", "import Client", "import AsyncClient")):
        foreign.add("client")
    if page.name in ("fal.md", "openai.md", "replicate.md"):
        foreign |= {"client", "job", "batch"}
    return {name: value for name, value in KNOWN.items() if name not in foreign}


def check_arguments(node: ast.Call, known: dict[str, tuple[Any, ...]]) -> None:
    """The call, if it is one of the application's, has keyword arguments that exist."""
    called = node.func
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name) or called.value.id not in known:
        return
    (method, *_) = [getattr(each, called.attr) for each in known[called.value.id] if hasattr(each, called.attr)]
    parameters = inspect.signature(method).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    unknown = {word.arg for word in node.keywords if word.arg is not None} - parameters.keys()
    assert not unknown, f"{called.value.id}.{called.attr}({', '.join(sorted(unknown))})"


@with_blocks("toml")
def test_configurations_are_valid(page: Path, tmp_path: Path) -> None:
    for number, body in enumerate(blocks(page, "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(body, encoding="utf-8")
        problems = Fairlead(load(file, {})).check()
        assert [problem for problem in problems if not ELSEWHERE.search(problem)] == []


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """The words after `program` in each command of the page. A quoted text may have several lines."""
    for body in blocks(page, "sh", "console"):
        lines = iter(body.replace("\\\n", " ").splitlines())
        for line in lines:
            command = line.removeprefix("$ ").strip()
            while command.startswith(f"{program} ") and command.partition(" #")[0].count("'") % 2:
                command += f"\n{next(lines)}"
            for each in re.split(r"\s*(?:;|&&)\s+", command):
                if each.startswith(f"{program} "):
                    yield shlex.split(each.replace("$FAIRLEAD_URL", GATEWAY), comments=True)[1:]


@with_blocks("sh", "console", pages=[*PAGES, *EXAMPLES])
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page, "fairlead"):
        command_line(words)


@with_blocks("sh", "console")
def test_requests_have_routes(page: Path) -> None:
    routes = create_gateway(Fairlead()).routes
    for words in commands(page, "curl"):
        url = next(urlsplit(word) for word in words if word.startswith("http"))
        if url.hostname != "127.0.0.1" or url.port != 8000:
            continue
        given = [words[words.index(option) + 1] for option in ("-X", "--request") if option in words]
        method = given[0] if given else "POST" if {"-d", "--data", "--data-binary"} & set(words) else "GET"
        if "-T" in words:
            method = "PUT"
        scope = {"type": "http", "method": method, "path": url.path, "headers": []}
        assert any(route.matches(scope)[0] is Match.FULL for route in routes), f"{method} {url.path}"


def test_toml_is_toml_everywhere() -> None:
    for page in EXAMPLES:
        for body in blocks(page, "toml"):
            tomllib.loads(body)
