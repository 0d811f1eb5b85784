"""The npm client `@fal-ai/client` through `/fal/proxy`, and the provider `@ai-sdk/fal` of the AI SDK, both unmodified.
They are installed into a temporary folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.fal_site import ADMIN, open_fal
from tests.integration.test_openai_npm import install, run

SCRIPT = Path(__file__).parent / "fal_client.mjs"


@pytest.fixture
async def packages(tmp_path: Path) -> Path:
    return await install(tmp_path, SCRIPT, "@fal-ai/client@1.10.1", "@ai-sdk/fal@2.0.59")


@pytest.mark.slow
async def test_the_npm_client_works_unmodified(
    packages: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(authority / "ca.pem"))
    async with open_fal(packages, authority, admin_key=ADMIN) as site:
        site.endpoint.gate.set()
        key = (await site.app.create_key("user", user_id="ada")).text
        code, out, err = await run("node", SCRIPT.name, f"{site.url}/fal/proxy", key, cwd=packages)
    assert code == 0, err
    got = json.loads(out)
    prompt = {"prompt": "a harbour"}
    assert got.pop("kinds")[0] == "COMPLETED"
    assert got == {
        "polled": {**prompt, "user": "ada"},
        "requestId": 36,
        "streamed": {**prompt, "user": "ada"},
        "last": ["COMPLETED", True, "number"],
        "position": 0,
        "result": {"echo": prompt},
        "late": [400, "ALREADY_COMPLETED"],
        "run": {"echo": prompt},
        "events": [{"step": 0}, {"step": 1}, {"done": True}],
        "done": {"done": True},
        "file": "cat",
        "given": "dog",
        "large": 95 * 1024 * 1024,
        "invalid": [
            "ValidationError", 422, "no such size", [{"loc": ["body"], "msg": "no such size", "type": "value_error"}]
        ],
        "unknown": ["ApiError", 404, "there is no app 'acm", None],
        "painted": [list(b"\x89PNG"), "image/png"],
        "picky": ["AI_APICallError", 422, "body: no such size", False],
        "refused": 422,
    }  # fmt: skip
