"""The application of the documentation's examples, running behind a real gateway, and a reader who tries each block.

The stage has the services, models, budgets and schedules that the pages name. An id in a command stands for something
that exists: a job in the state that the command needs, or the last thing of that kind that an output has shown.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx2
from fastapi import FastAPI
from tests import redis_servers, servers
from tests.integration.cli_process import COMMAND, environment, fairlead, started
from tests.integration.gateway_site import client_of, served
from tests.openai_upstream import running_upstream
from tests.webhook_receiver import receiver

from fairlead import Call, Config, Fairlead, Retry
from fairlead.artifacts.files import NewFile
from fairlead.cli import certs
from fairlead.config import Settings
from fairlead.gateway.app import create_gateway
from fairlead.testing import run

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
_BLOCK = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
PATIENCE_S = 20.0
ENDLESS = ("up", "api", "worker", "manager", "celery metrics")
"""Commands that run until they are interrupted."""
ON_BOTH_SERVERS = ("api", "worker", "manager")
CONFIG_OF_PROCESSES = """
[services.image_gen]
url = "http://127.0.0.1:9/run"
limit = 1
[services.upscale]
url = "http://127.0.0.1:9/run"
limit = 1
[worker_pools.high]
bands = ["high"]
concurrency = 5
"""
STARTED: set[str] = set()
"""The processes that a page has started: several pages have the same command."""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
LINE = (
    '{"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions", '
    '"body": {"model": "llama-3.1-70b", "messages": [{"role": "user", "content": "Hello"}]}}\n'
)
FILES = {
    "cat.png": PNG,
    "part1": PNG,
    "questions.jsonl": b'{"input_data": {"prompt": "one"}}\n{"input_data": {"prompt": "two"}}\n',
    "requests.jsonl": LINE.encode(),
    "my_module.py": b"from fairlead import Fairlead\napp = Fairlead()\n",
    "myapp.py": b"from fairlead import Fairlead\napp = Fairlead()\n",
    "myproject/jobs.py": b"from fairlead import Fairlead\napp = Fairlead()\n",
    "proj/__init__.py": b"from proj.celery import app as celery\n",
}
JOB = "01938f1c-6f5e-7a30-9d2c-5b8f3c1d2e4f"
BATCH = "01938f1c-7a10-7b31-8e4d-6c9f4d2e3f50"
TURN = "01938f1c-8b21-8c42-9f5e-7da05e3f4061"
SEEN = {
    r"file-[0-9a-f]{32}": r"file-[0-9a-f]{32}",
    r"ep_[0-9a-f]{32}": r"ep_[0-9a-f]{32}",
    r"sch_[0-9a-f]{32}": r"sch_[0-9a-f]{32}",
    r"resp_[0-9a-f]{32}": r"resp_[0-9a-f]{32}",
    r"batch_[0-9a-f]{32}": r"batch_[0-9a-f]{32}",
    r"msg_[0-9a-f-]{36}_\d+": r"msg_[0-9a-f-]{36}_\d+",
    r"1731801600\.5f2a": r'upload_url"[^,}]*ticket=([\w.]+)',
    r"\b7c0e8f6d\b": r'"id": ?"([0-9a-f]{64})"',
    TURN: r'"turn_id": ?"([0-9a-f-]{36})"',
}
"""Ids in commands, and how a response shows the real one. A command uses the last one that was shown."""


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title and body of each code block."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(body: str, language: str = "sh") -> Iterator[str]:
    """The commands of a block. A quoted text and a command with a backslash go on in the next line."""
    lines = iter(body.replace("\\\n", " ").splitlines())
    for line in lines:
        if language == "console" and not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ").strip()
        while _is_open(command):
            command += f"\n{next(lines)}"
        if command and not command.startswith("#"):
            yield command


def _is_open(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


INPUT = {
    "messages": [{"role": "user", "content": "Hello"}], "prompt": "a harbour", "image": "a.png", "steps": 4,
    "name": "cat.png",
}  # fmt: skip


class Drawn(str):
    """What a model returns to code that awaits it, and to code that does not."""

    def __await__(self) -> Iterator[Any]:
        yield from ()
        return self


class Model:
    """The model that examples call themselves."""

    def generate(self, prompt: str) -> Any:
        return Drawn(f"{prompt}.png")


@dataclass
class Stage:
    app: Fairlead
    gateway: FastAPI
    folder: Path
    port: int
    replaced: dict[str, str]
    stack: AsyncExitStack
    http: httpx2.AsyncClient
    environment: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # ---------------------------------------------------------------- Python

    async def python(self, body: str, names: dict[str, Any]) -> None:
        """Run a block as a reader would: what awaits in the event loop, the rest in a thread. Services that it declares
        on an app of its own complete a job afterwards."""
        declares = re.search(r"^@app\.|^app\.(schedule|pipeline)|app\.running|async with app:|= Fairlead\(", body, re.M)
        names = {"app": self.app, **names, "__name__": "block"}
        if "Roles(" in body:
            servers.postgres_url()
            both = {"database_url": await _emptied_database(), "redis_url": redis_servers.server_url()}
            names["app"] = Fairlead(Settings(Config(), **both))
        elif declares:
            names["app"] = Fairlead(Settings(Config(), f"sqlite:///{self.folder / 'declared.db'}"))
        elif "app.sync" in body:  # of another process, with the same database
            names["app"] = Fairlead(Settings(Config(), f"sqlite:///{self.folder / 'fairlead.db'}"))
            declare(names["app"])
            self.stack.callback(names["app"].sync.close)
        if 'key="fl_..."' in body:
            body = body.replace("fl_...", json.loads(await self._make("/admin/keys", role="admin"))["key"])
        code = compile(self.filled(body), "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            await asyncio.wait_for(eval(code, names), PATIENCE_S)
        elif declares:
            exec(code, names)
            await self._complete_jobs(names["app"])
        else:
            await asyncio.to_thread(exec, code, names)

    async def _complete_jobs(self, app: Fairlead) -> None:
        """Each pipeline that a block declares, and each service outside a pipeline, completes a job. What the block
        takes for granted is declared here."""
        pipelines = app.config.pipelines
        declared = [*pipelines, *(set(app.config.services) - {step for steps in pipelines.values() for step in steps})]
        declare(app)
        folder = Path(mkdtemp(dir=self.folder))
        async with run(app, folder):
            file = await app.files.save(NewFile("ada", "cat.png"), _chunks())
            for feature in declared or ["image_gen"]:
                if feature in app.config.services and app.config.services[feature].models:
                    async with client_of(create_gateway(app)) as http:
                        [model] = app.config.services[feature].models
                        request = {"model": model, "messages": INPUT["messages"]}
                        response = await http.post("/v1/chat/completions", json=request)
                    assert response.is_success, response.text
                    continue
                job = await app.submit(feature, {**INPUT, "sketch": {"$file": file.id}}, user_id="ada")
                ended = await app.wait(job.id, PATIENCE_S)
                assert ended.status == "COMPLETED", f"{feature}: {ended.error}"

    async def script(self, body: str) -> None:
        """Run a block as a program of its own, because it imports a client that reads the environment."""
        certificate = self.folder / "certs" / "cert.pem"
        if certificate.exists():  # the clients of fal need https
            files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(certificate.with_name("key.pem"))}
            port = await self.stack.enter_async_context(served(self.gateway, **files))
            hosts = {name: value.replace(":8000", f":{port}") for name, value in self.environment.items()}
            self.environment.update(hosts)
        (self.folder / "block.py").write_text(self.filled(body), encoding="utf-8")
        await self._shell(f"{sys.executable} -W ignore block.py")

    # ---------------------------------------------------------------- commands

    async def command(self, command: str, input: str = "") -> None:
        if re.fullmatch(r"(fairlead [^|;&<>]+(; | && )?)+", command) and re.search(r"; | && ", command):
            for part in re.split(r"; | && ", command):
                await self.command(part)
            return
        command = command.partition(" #")[0].rstrip()
        if piped := re.fullmatch(r"echo '(.+)' \| (fairlead .+)", command):
            input, command = piped.groups()
        if inner := re.search(r"\$\((fairlead [^)]+)\)", command):
            command = command.replace(inner[0], await self._fairlead(shlex.split(inner[1])[1:]))
        words = shlex.split(self.filled(command))
        given = {}
        while re.match(r"[A-Z_]+=", words[0]) and len(words) > 1:
            name, _, given[name] = words.pop(0).partition("=")
        name = " ".join(words[1:3]) if words[1:2] == ["celery"] else "".join(words[1:2])
        if words[:2] == ["pip", "install"]:
            assert {extra for word in words[2:] for extra in re.findall(r"\w+", word.partition("[")[2])} <= EXTRAS
        elif words[0] == "export":
            self._export(words[1:])
        elif words[0] == "fairlead" and (name in ENDLESS or "--watch" in words):
            if command not in STARTED:
                STARTED.add(command)
                servers.postgres_url()  # here: a server ends with the thread that starts it
                await asyncio.to_thread(self._start, words[1:], given)
        elif words[0] == "fairlead":
            words = shlex.split(await self.addressed(command))
            output = await self._fairlead(words[words.index("fairlead") + 1 :], given, input)
            if ">" in words:
                (self.folder / words[-1]).write_text(output, encoding="utf-8")
        else:
            if "8000/v1/batches " in command:
                await self.app.pause("vllm")  # or the batch would end before the page cancels it
            await self._shell(await self.addressed(command), input)
            if re.search(r"/v1/batches/\w+/cancel", command):
                await self.app.unpause("vllm")
                await self._cancelled()
        if "drain" in command:  # the commands that follow need the worker
            [worker] = await self.app.workers()
            await self._make(f"/admin/workers/{worker['name']}/drain", on=False)

    async def _cancelled(self) -> None:
        """Wait for the end of the last batch, whose file the page then deletes."""
        path = f"/v1/batches/{self.seen[r'batch_[0-9a-f]{32}']}"
        async with asyncio.timeout(PATIENCE_S):
            while (await self.http.get(path)).json()["status"] != "cancelled":
                await asyncio.sleep(0.05)

    def _export(self, words: list[str]) -> None:
        """The servers of the page are not those of the test."""
        given = dict(word.split("=", 1) for word in words)
        self.environment.update({name: value for name, value in given.items() if ".example" not in value})

    async def _fairlead(self, words: list[str], given: dict[str, str] | None = None, input: str = "") -> str:
        words = words[: words.index(">")] if ">" in words else words
        env = {**self._environment(), **(given or {})}
        done = await asyncio.to_thread(fairlead, *words, cwd=self.folder, env=env, stdin=input)
        found = words[0] == "doctor" and done.code == 1  # on a busy machine, the doctor may have findings
        assert done.code == 0 or found, f"fairlead {shlex.join(words)}\n{done.out}{done.err}"
        if words[:2] == ["keys", "create"]:
            self._use_key(done.out.strip())
        self._note(done.out)
        return done.out.strip()

    def _use_key(self, key: str) -> None:
        """Use the first key of the page, which is an admin's, from now on."""
        key = self.environment.setdefault("FAIRLEAD_API_KEY", key)
        self.http.headers["Authorization"] = f"Bearer {key}"

    async def _shell(self, command: str, input: str = "") -> None:
        home = self.folder / "curl"
        home.mkdir(exist_ok=True)
        key = self.environment.get("FAIRLEAD_API_KEY")
        header = [f'header = "Authorization: Bearer {key}"'] if key and "Authorization" not in command else []
        options = ["fail-with-body", f"max-time = {PATIENCE_S:g}", "no-progress-meter", "noproxy = *", *header]
        (home / ".curlrc").write_text("\n".join(options), encoding="utf-8")
        ended = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", f"set -eo pipefail\n{command}"], cwd=self.folder, capture_output=True,
            text=True, env=environment({**self._environment(), "CURL_HOME": str(home)}), timeout=2 * PATIENCE_S,
            check=False, errors="replace", input=input,
        )  # fmt: skip
        assert ended.returncode == 0, f"$ {command}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        self._note(ended.stdout)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        given = {"FAIRLEAD_URL": self.url, "URL": self.url, "DATABASE_URL": f"sqlite:///{self.folder / 'fairlead.db'}"}
        return {**given, "PATH": path, "PYTHONPATH": str(self.folder), "COLUMNS": "200", **self.environment}

    def _start(self, words: list[str], given: dict[str, str]) -> None:
        """Start a process, wait for its first output, and interrupt it."""
        folder = Path(mkdtemp())
        self.stack.callback(shutil.rmtree, folder)
        shutil.copytree(
            self.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.db*", "files", "tmp*")
        )
        if "--openai" not in words:
            (folder / "fairlead.toml").write_text(CONFIG_OF_PROCESSES, encoding="utf-8")
        if "--certfile" in words:
            (folder / "certs").mkdir(exist_ok=True)
            certs._make(folder / "certs", [*certs.LOCAL])
            for option, file in (("--certfile", "cert.pem"), ("--keyfile", "key.pem")):
                words[words.index(option) + 1] = f"certs/{file}"
        given = {"DATABASE_URL": f"sqlite:///{folder / 'process.db'}", "FAIRLEAD_SERVER__PORT": "0", **given}
        if words[0] in ON_BOTH_SERVERS:
            given |= {"DATABASE_URL": asyncio.run(_emptied_database()), "REDIS_URL": redis_servers.server_url()}
        shown = () if words[0] in ("celery", "status") else ("--json",)
        given = {**self._environment(), **given, "FAIRLEAD_API_KEY": ""}
        with started((*COMMAND, *words, *shown), cwd=folder, env=given) as process:
            process.wait_for('"process"' if shown else "")
            process.signal(signal.SIGINT)
            assert process.ended() in (0, 130), "".join(process.output)

    # ---------------------------------------------------------------- ids and addresses

    def filled(self, text: str) -> str:
        for shown, real in self.replaced.items():
            text = text.replace(shown, real)
        return text

    def _note(self, output: str) -> None:
        for written, shown in SEEN.items():
            if found := re.findall(shown, output):
                self.seen[written] = found[-1]

    async def addressed(self, command: str) -> str:
        """The command with ids of things that exist."""
        if re.search(rf"{JOB}(?!_)|\bJOB_ID\b", command):
            command = re.sub(rf"{JOB}(?!_)|\bJOB_ID\b", await self._job(command), command)
        if BATCH in command:
            command = command.replace(BATCH, await self._batch(command))
        if f"{TURN}/" in command:
            await self._make("/api/v1/turns", service="flux", user_id="ada")
            await self.http.get(f"/api/v1/turns/{self.seen[TURN]}", headers={"Prefer": "wait=10"})  # takes the slot
        if f"{TURN}/events" in command:  # the stream ends with the turn
            await self._make(f"/api/v1/turns/{self.seen[TURN]}/cancel")
        if "/admin/keys" in command and " -d " in command:
            self._use_key(json.loads(await self._make("/admin/keys", role="admin"))["key"])
        for written in SEEN:
            if re.search(written, command):
                if written not in self.seen:
                    await self._make_what(written)
                command = re.sub(written, self.seen[written], command)
        if "gpu-host-1" in command:
            [worker] = await self.app.workers()
            command = command.replace("gpu-host-1:4242:5f0c9a1e", worker["name"])
        if "3f9c0a1b2c3d" in command:
            keys = (await self.http.get("/admin/keys")).json()["data"]
            command = command.replace("3f9c0a1b2c3d", next(key["id"] for key in keys if key["role"] != "admin"))
        return self.filled(command)

    async def _make(self, path: str, **body: Any) -> str:
        response = await self.http.post(path, json=body)
        assert response.is_success, response.text
        self._note(response.text)
        return response.text

    async def _make_what(self, written: str) -> None:
        """Make what the page takes for granted."""
        if written.startswith("ep_"):
            await self._make("/api/v1/webhooks/endpoints", url=self.filled("https://example.com/hooks"), user_id="ada")
        elif written.startswith("msg_"):
            job = await self.app.submit(
                "image_gen", user_id="ada", webhook_url=self.filled("https://example.com/hooks")
            )
            await self.app.wait(job.id, PATIENCE_S)
            self._note((await self.http.get("/api/v1/webhooks/deliveries")).text)

    async def _job(self, command: str) -> str:
        """A job in the state that the command needs."""
        if re.search(r"cancel|priority|why", command):
            return (await self.app.submit("parked", user_id="ada")).id
        feature = "flux" if "/fal/flux" in command else "full_pipeline"
        if re.search(r"/retry|/resume|fairlead (retry|resume)|purge", command) and not command.endswith(
            (" 2", "/2/retry")
        ):
            feature = "broken"
        job = await self.app.submit(feature, {"prompt": "a harbour"}, user_id="ada")
        await self.app.wait(job.id, PATIENCE_S)
        return job.id

    async def _batch(self, command: str) -> str:
        feature = "parked" if "cancel" in command else "broken" if re.search("retry|resume", command) else "text_only"
        items = [{"custom_id": "q1", "input_data": {"prompt": "one"}}]
        batch = await self.app.submit_batch(items, user_id="ada", feature_name=feature)
        if feature != "parked":
            await batch.wait(PATIENCE_S)
        return batch.id


async def _emptied_database() -> str:
    url = await servers.shared_database()
    await servers.empty(url)
    return url


async def _chunks() -> AsyncIterator[bytes]:
    yield PNG


WORKING = [
    "prompt_enhancer", "fast_chat_llm", "image_gen", "model_3d_gen", "chat_llm", "upscale", "flux", "flux_dev", "llm",
    "llama", "mistral", "qwen", "report", "thumbnail", "draw", "comfy", "txt2img",
]  # fmt: skip


def declare(app: Fairlead) -> None:
    """Declare the services and pipelines that pages take for granted, unless the app has them."""
    for name in WORKING:
        if name not in app.config.services:
            app.service(name, limit=10, **({"cost_unit": "tokens"} if name == "llm" else {}))(work)
    if "chat" not in app.config.services:
        app.service("chat", limit=4)(talk)
    app.pipeline("full_pipeline", ["prompt_enhancer", "fast_chat_llm", "image_gen", "model_3d_gen"])
    app.pipeline("text_only", ["prompt_enhancer", "fast_chat_llm"])

    @app.service("broken", limit=4, retry="manual")
    async def broken(call: Call) -> None:
        raise Retry("not yet")

    @app.service("parked", limit=1)
    async def parked(call: Call) -> None:
        await asyncio.Event().wait()


async def work(call: Call) -> dict[str, Any]:
    return {"text": "a story", "picture": await call.save("picture.png", PNG)}


async def talk(call: Call) -> AsyncIterator[str]:
    for word in ("Once", " upon", " a time"):
        yield word


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Stage]:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(running_upstream("llama-3.1-70b", "bge-m3", "flux", "guard"))
        hooks = await stack.enter_async_context(receiver())
        config = {
            "services": {
                "vllm": {"limit": 4, "openai": upstream.url},
                "inference": {"limit": 4, "regions": {"us": {"url": "http://127.0.0.1:9/run", "limit": 4}}},
            },
            "plans": {"free": {"weight": 1}},
            "groups": {"acme": {}, "red": {"parent": "acme"}},
            "pools": {"gpu": 4},
            "budgets": {
                "free_tokens": {"plan": "free", "each_user": True, "tokens": 100000, "per": "day"},
                "bob": {"user": "bob", "seconds": 1800, "per": "day"},
            },
            "schedules": {"report": {"cron": "0 6 * * *"}},
            "fronts": {"replicate": {"models": {"acme/flux": "image_gen", "acme/llama": "chat"}}},
            "webhooks": {"allow_http": True, "allow_private": True},
            "artifacts": {"url": str(folder / "files")},
        }
        app = Fairlead(Settings(Config.model_validate(config), f"sqlite:///{folder / 'fairlead.db'}"))
        declare(app)
        await stack.enter_async_context(app.running())
        await app.submit("parked", user_id="bob")  # takes the only slot
        gateway = create_gateway(app)
        port = await stack.enter_async_context(served(gateway))
        http = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False)
        await stack.enter_async_context(http)
        replaced = {
            "127.0.0.1:8000": f"127.0.0.1:{port}",
            "https://fairlead.example": f"http://127.0.0.1:{port}",
            "http://vllm:8000/v1": upstream.url,
            "http://127.0.0.1:11434/v1": upstream.url,
            "https://example.com": hooks.url,
            "redis://localhost:6379/0": redis_servers.server_url(),
            "--host 0.0.0.0": "--host 127.0.0.1",
            "--metrics-host 10.0.0.5": "--metrics-host 127.0.0.1",
            ".venv/bin/fairlead": "fairlead",
            "FAL_KEY=fl_...": "FAL_KEY=any",
            **{f"port {number}": f"port {_free_port()}" for number in (8000, 8001, 8080, 8123, 9101, 9102, 9808)},
        }
        stage = Stage(app, gateway, folder, port, replaced, stack, http)
        [project] = [body for _, _, body in blocks(ROOT / "docs/celery.md") if body.startswith("# proj/celery.py")]
        (folder / "proj" / "celery.py").write_text(stage.filled(project), encoding="utf-8")
        yield stage


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
