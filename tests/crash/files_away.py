"""Takes a real object store away under load, and gives it back. Jobs wait, and nothing is lost or done twice:

python -m tests.crash.files_away --seconds 60 --jobs 500 [--distributed]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fairlead import Call, Fairlead
from fairlead.artifacts.objects import ObjectsUnavailable
from fairlead.config import Settings
from fairlead.domain.config import Config
from fairlead.domain.job import JobStatus
from tests import s3_server
from tests.chaos.proxy import Proxy
from tests.crash.files_soak import distributed

PAD = "x" * 300_000
PATIENCE = 120.0


def make_app(url: str, engines: dict[str, str], calls: Counter[str]) -> Fairlead:
    app = Fairlead(Settings(Config.model_validate({"artifacts": {"url": url}})), **engines)

    @app.service("draw", limit=6, max_attempts=2, backoff=[0.1], timeout=600)
    async def draw(call: Call) -> dict[str, Any]:
        """Reads a large input, saves a file, and returns a large result."""
        calls[call.job_id] += 1
        name = call.params["name"]
        return {"file": await call.save("a.bin", name.encode() * 1000), "pad": call.params["pad"], "name": name}

    @app.service("small", limit=6)
    async def small(call: Call) -> Any:
        return call.params

    return app


async def take_away(seconds: float, jobs: int, engines: dict[str, str]) -> str:
    """Returns a summary."""
    url = s3_server.new_bucket()
    proxy = Proxy(urlsplit(s3_server.endpoint()).port or 0)
    calls: Counter[str] = Counter()
    server = await asyncio.start_server(proxy.carry, "127.0.0.1", 0)
    url = url.replace(s3_server.endpoint(), f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    app = make_app(url, engines, calls)
    try:
        async with server, app.running():
            return await _take_away(app, proxy, calls, seconds, jobs)
    finally:
        proxy.command("cut")


async def _take_away(app: Fairlead, proxy: Proxy, calls: Counter[str], seconds: float, jobs: int) -> str:
    given = [{"name": f"n{number}", "pad": PAD} for number in range(jobs)]
    submitted = await asyncio.gather(*(app.submit("draw", each, user_id=f"u{n % 5}") for n, each in enumerate(given)))
    async with asyncio.timeout(PATIENCE):
        while (await submitted[0].get()).status is not JobStatus.COMPLETED:
            await asyncio.sleep(0.02)
    proxy.command("cut")
    began, waits, refused = time.monotonic(), [], 0
    while time.monotonic() < began + seconds or not waits:
        at = time.monotonic()
        job = await app.submit("small", {"n": 1}, user_id="eve")
        assert await job.result(timeout=PATIENCE) == {"n": 1}
        waits.append(time.monotonic() - at)
        try:
            await app.submit("draw", given[0], user_id="eve")
        except ObjectsUnavailable:
            refused += 1
        await asyncio.sleep(0.05)
    assert refused
    done = sum([(await job.get()).status.finished for job in submitted])
    assert done < jobs, "the object store was not away under load"
    lasted = time.monotonic() - began
    proxy.command("heal")
    for job, each in zip(submitted, given, strict=True):
        result = await job.result(timeout=PATIENCE)
        assert (result["pad"], result["name"]) == (PAD, each["name"])
        saved = await app.files.get_complete(result["file"]["$file"])
        assert await app.files.read_all(saved) == each["name"].encode() * 1000
    twice = [job_id for job_id, count in calls.items() if count > 1]
    assert not twice, f"{len(twice)} calls were made twice"
    waits.sort()
    return (
        f"{jobs} jobs, {done} of them done before the outage of {lasted:.0f} s; {len(waits)} jobs without files during"
        f" it, the slowest took {waits[-1]:.2f} s; {refused} large submits refused; nothing lost, no call made twice"
    )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--distributed", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engines = {"database_url": f"sqlite:///{Path(folder)}/fairlead.db"}
        if options.distributed:
            engines = {name.lower(): value for name, value in (await distributed()).items()}
        print(await take_away(options.seconds, options.jobs, engines))


if __name__ == "__main__":
    asyncio.run(main())
