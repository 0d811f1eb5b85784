"""`make screenshots`: the pictures of the README and docs/dashboard.md, taken of the running sample project.

It starts the sample as `make run` does, on its own data, lets several users work with it for a while (SHOTS_AFTER
seconds, by default 180; the charts show an hour), and takes each picture in a window of a fixed size.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from playwright.async_api import Browser, expect

from tests.browser import chromium, strict_window
from tests.browser.pages import settled

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1280, "height": 860}
SHORT = {"width": 1280, "height": 520}
LARGEST = 200_000
LAST_S = 12

PEOPLE = (("ada", "medium"), ("bob", "medium"), ("cyn", "high"), ("dee", "low"), ("eve", "medium"))
PROMPTS = ("a lighthouse at dawn", "a harbour in the fog", "a robot that paints", "the last train home", "a quiet pier")


@dataclass(frozen=True)
class Shot:
    """One picture: docs/dashboard-NAME.png."""

    name: str
    route: str
    scheme: str = "light"
    size: tuple[tuple[str, int], ...] = tuple(WIDE.items())

    @property
    def path(self) -> Path:
        return DOCS / f"dashboard-{self.name}.png"


@asynccontextmanager
async def sample(folder: Path) -> AsyncIterator[str]:
    """The sample project, started as by `make run`, on a free port and with its own data. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "PORT": str(port), "DATABASE_URL": f"sqlite:///{folder}/sample.db"}
    command = (sys.executable, str(ROOT / "examples" / "cao" / "run.py"))
    with (folder / "log").open("w+") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        except BaseException:
            print((folder / "log").read_text()[-5000:], file=sys.stderr)
            raise
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            await process.wait()


class Crowd:
    """Several users, some of whose jobs fail, and an operator."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._random = random.Random(7)

    async def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self._client.request(method, path, json=body)
        answer.raise_for_status()
        return dict(answer.json())

    async def until_ready(self) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    if (await self._client.get("/readyz")).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(0.1)

    async def submit(self, feature: str, user: str, priority: str, prompt: Any, **more: Any) -> None:
        body = {"user_id": user, "feature_name": feature, "input_data": {"prompt": prompt}, "priority": priority}
        await self.ask("POST", "/api/v1/jobs", body | more)

    async def work(self, seconds: float) -> None:
        """Keep a queue that exceeds the capacity of the services, but stays bounded."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            user, priority = self._random.choice(PEOPLE)
            feature = "full_pipeline" if self._random.random() < 0.16 else "text_only"
            await self.submit(feature, user, priority, self._random.choice(PROMPTS))
            await asyncio.sleep(self._random.uniform(0.2, 0.9))

    async def fail(self) -> None:
        """Dead letters of two kinds, fewer than the doctor warns of: the sample's services refuse a prompt that is not
        text, and no call completes within a hundredth of a second."""
        for user, priority in PEOPLE[:4]:
            await self.submit("text_only", user, priority, 17)
        for user, priority in PEOPLE[:3]:
            await self.submit("full_pipeline", user, priority, PROMPTS[0], deadline=0.01)

    async def operate(self) -> None:
        await self.ask("PUT", "/admin/services/prompt_enhancer/limit", {"limit": 4})
        await self.ask("POST", "/admin/services/image_gen/pause")
        await self.ask("POST", "/admin/services/image_gen/resume")

    async def survey(self) -> str:
        items = [{"custom_id": f"q{n}", "input_data": {"prompt": f"question {n}"}} for n in range(40)]
        body = {"user_id": "cyn", "name": "spring survey", "feature_name": "text_only", "items": items}
        return str((await self.ask("POST", "/api/v1/batches", body))["batch_id"])


async def take(browser: Browser, url: str, shot: Shot) -> None:
    options = {"color_scheme": shot.scheme, "viewport": dict(shot.size)}
    async with strict_window.opened(browser, url, **options) as window:
        page = await window.go(shot.route)
        await settled(page)
        await expect(page.locator(".health.unknown")).to_have_count(0, timeout=30_000)
        await page.screenshot(path=shot.path, animations="disabled", caret="hide")
        if window.complaints:
            raise SystemExit(f"{shot.name}: {window.complaints}")
    size = shot.path.stat().st_size
    print(f"{shot.path.relative_to(ROOT)}: {size // 1000} KB", flush=True)
    if size > LARGEST:
        raise SystemExit(f"{shot.name} is too large for a repository")


async def main() -> None:
    seconds = float(os.environ.get("SHOTS_AFTER", "180"))
    with tempfile.TemporaryDirectory(prefix="fairlead-shots-") as folder:
        async with sample(Path(folder)) as url, httpx2.AsyncClient(base_url=url) as client:
            crowd = Crowd(client)
            await crowd.until_ready()
            await crowd.operate()
            await crowd.fail()
            for n in range(6):
                await crowd.submit("full_pipeline", *PEOPLE[n % 5], PROMPTS[n % 5])
            print(f"the sample works for {seconds:g} s", flush=True)
            await crowd.work(seconds - LAST_S)
            batch = await crowd.survey()
            await crowd.work(LAST_S)
            shots = (
                Shot("overview", "/"),
                Shot("overview-dark", "/", scheme="dark"),
                Shot("phone", "/", size=tuple(PHONE.items())),
                Shot("service", "/services/image_gen"),
                Shot("job", f"/jobs/{await example_job(crowd)}"),
                Shot("jobs", "/jobs"),
                Shot("dead", "/dead", size=tuple(SHORT.items())),
                Shot("batch", f"/batches/{batch}"),
            )
            async with chromium.launched() as browser:
                for shot in shots:
                    await take(browser, url, shot)


async def example_job(crowd: Crowd) -> str:
    """A job with completed steps that waits for the next one."""
    jobs = (await crowd.ask("GET", "/api/v1/jobs?feature_name=full_pipeline&limit=200"))["data"]
    under_way = [job for job in jobs if job["current_step_index"] >= 2 and job["status"] in ("PENDING", "RUNNING")]
    return str((under_way or jobs)[0]["job_id"])


if __name__ == "__main__":
    asyncio.run(main())
