"""fal's client against two gateways and two workers on PostgreSQL and Redis, of which one each is killed, and against a
gateway whose Redis is gone."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.cli_process import running
from tests.integration.fal_site import PORT, fal_client, open_fal
from tests.integration.test_openai_distributed import balanced
from tests.redis_servers import port_of, start_server

CONFIG = """
[services.gate]
function = "project:gate"
limit = 4
lease_ttl = 2
backoff = [0.1]
max_attempts = 5
[fronts.fal]
apps = { "acme/flux/dev" = "gate" }
"""


@pytest.fixture
def urls(database: str) -> dict[str, str]:
    client = start_server()
    client.close()
    return {"DATABASE_URL": database, "REDIS_URL": f"redis://127.0.0.1:{port_of(client)}/0"}


@pytest.mark.slow
async def test_every_subscriber_gets_its_result_while_a_gateway_and_a_worker_are_killed(
    tmp_path: Path, authority: Path, urls: dict[str, str]
) -> None:
    (tmp_path / "fairlead.toml").write_text(CONFIG)
    env = {**urls, "PYTHONPATH": str(tmp_path)}
    config = ("--config", "fairlead.toml")
    tls = ("--certfile", str(authority / "cert.pem"), "--keyfile", str(authority / "key.pem"))
    with ExitStack() as stack:
        stack.enter_context(running("manager", tmp_path, *config, env=env))
        workers = [stack.enter_context(running("worker", tmp_path, *config, env=env)) for _ in range(2)]
        gateways = [stack.enter_context(running("api", tmp_path, *config, *tls, env=env)) for _ in range(2)]
        async with balanced(*gateways, port=PORT):
            client = fal_client.AsyncClient(key="any")
            gate = tmp_path / "open"
            asked = []
            for number in range(4):
                entered = tmp_path / f"entered-{number}"
                arguments = {"entered": str(entered), "gate": str(gate)}
                asked.append((entered, asyncio.create_task(client.subscribe("acme/flux/dev", arguments))))
            async with asyncio.timeout(30):
                while not all(entered.exists() for entered, _ in asked):
                    await asyncio.sleep(0.05)
            workers[0].signal(signal.SIGKILL)
            gateways[0].signal(signal.SIGKILL)
            gate.touch()
            async with asyncio.timeout(90):
                results = await asyncio.gather(*(task for _, task in asked))
            await (await client._client).aclose()
    assert results == [{"through": True}] * 4


async def test_a_held_poll_learns_of_the_end_while_redis_is_gone(
    tmp_path: Path, authority: Path, database: str
) -> None:
    redis = start_server()
    engines = {"database_url": database, "redis_url": f"redis://127.0.0.1:{port_of(redis)}/0"}
    async with open_fal(tmp_path, authority, engines=engines, artifacts={"url": str(tmp_path / "files")}) as site:
        waiting = asyncio.create_task(site.client().subscribe("acme/flux", {"prompt": "a harbour"}))
        await site.endpoint.reaches(open=1)
        await site.until(lambda: site.polls.held == 1)
        redis.shutdown(nosave=True)
        site.endpoint.gate.set()
        async with asyncio.timeout(60):
            assert await waiting == {"prompt": "a harbour", "user": "anonymous"}
