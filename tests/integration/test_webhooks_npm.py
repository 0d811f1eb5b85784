"""One delivery, verified by the npm packages `standardwebhooks`, `replicate` and `openai`, unmodified, and by OpenAI's
client for Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from openai import OpenAI

from fairlead.domain.webhooks import JobWebhook, Shape
from tests.integration.test_openai_npm import run
from tests.integration.test_webhooks import running
from tests.servers import missing
from tests.webhook_receiver import receiver

SCRIPT = Path(__file__).parent / "webhook_client.mjs"
PACKAGES = ("openai@6.49.0", "replicate@1.4.0", "standardwebhooks@1.1.1")


@pytest.mark.slow
async def test_a_delivery_is_verified_by_three_public_verifiers(tmp_path: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("Node.js is not installed")
    shutil.copy(SCRIPT, tmp_path / SCRIPT.name)
    command = ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", tmp_path)
    code, _, err = await run(*command, *PACKAGES, cwd=tmp_path)
    if code:
        missing(f"npm cannot install the verifiers: {err[-500:]}")
    async with receiver() as hooks, running({"database_url": f"sqlite:///{tmp_path}/jobs.db"}) as app:
        secret = (await app.webhooks.rotate_default("ada")).secret
        webhook = JobWebhook(hooks.url, shape=Shape.OPENAI, subject="resp_1")
        await app.submit("echo", user_id="ada", webhook_url=webhook)
        (request,) = await hooks.reaches(1)
    delivery = {"body": request.text, "headers": dict(request.headers), "secret": secret}
    (tmp_path / "delivery.json").write_text(json.dumps(delivery))
    code, out, err = await run("node", SCRIPT.name, "delivery.json", cwd=tmp_path)
    assert code == 0, err
    kind = "response.completed"
    assert json.loads(out) == {"standard": kind, "replicate": True, "openai": kind, "refused": [True, True, True]}
    event = OpenAI(api_key="any").webhooks.unwrap(request.text, dict(request.headers), secret=secret)
    assert event.type == kind
    assert event.data.id == "resp_1"
