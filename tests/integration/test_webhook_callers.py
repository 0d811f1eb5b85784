"""Webhooks from outside: the HTTP clients, the command line, and a receiver that verifies fal's signature."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook

from fairlead import AsyncClient, Client, Fairlead
from fairlead.cli.failure import Exit
from fairlead.domain.webhooks import JobWebhook, Shape
from fairlead.gateway.app import create_gateway
from tests.integration.cli_process import Done, fairlead
from tests.integration.gateway_site import served
from tests.integration.test_webhooks import running, verified
from tests.webhook_receiver import Receiver, Request, receiver


@dataclass
class Site:
    app: Fairlead
    url: str
    hooks: Receiver
    cwd: Path

    async def run(self, *arguments: str) -> Done:
        """`fairlead webhooks`, against this gateway."""
        command = ("webhooks", *arguments)
        return await asyncio.to_thread(fairlead, *command, cwd=self.cwd, env={"FAIRLEAD_URL": self.url})

    async def json(self, *arguments: str) -> Any:
        done = await self.run(*arguments, "--json")
        assert done.code == Exit.OK, done.err
        return done.json


@pytest.fixture
async def site(tmp_path: Path, embedded: dict[str, str]) -> AsyncIterator[Site]:
    async with receiver() as hooks, running(embedded) as app, served(create_gateway(app)) as port:
        yield Site(app, f"http://127.0.0.1:{port}", hooks, tmp_path)


async def test_the_clients_submit_jobs_and_batches_with_webhooks(site: Site) -> None:
    hook: dict[str, Any] = {"webhook_url": f"{site.hooks.url}/job", "webhook_events": ["job.completed"]}

    def blocking() -> str:
        with Client(site.url) as client:
            return client.submit("echo", {"n": 1}, user_id="ada", **hook).id

    ids = [await asyncio.to_thread(blocking)]
    async with AsyncClient(site.url) as client:
        ids.append((await client.submit("echo", {"n": 2}, user_id="ada", **hook)).id)
        batch = await client.submit_batch(
            [{"input_data": {"n": 3}}], user_id="ada", feature_name="echo", webhook_url=f"{site.hooks.url}/batch"
        )
    got = await site.hooks.reaches(3)
    assert sorted(each.body["data"]["job_id"] for each in got if each.path == "/job") == sorted(ids)
    assert [each.body["data"]["batch_id"] for each in got if each.path == "/batch"] == [batch.id]


async def test_the_command_line_manages_endpoints_and_sends_again(site: Site) -> None:
    created = await site.json("create", site.hooks.url, "--user", "ada", "--event", "job.completed")
    endpoint = created["id"]
    assert [each["id"] for each in await site.json("list", "--user", "ada")] == [endpoint]
    job = await site.app.submit("echo", {"n": 1}, user_id="ada")
    (first,) = await site.hooks.reaches(1)
    assert verified(first, created["secret"])["data"]["job_id"] == job.id
    (logged,) = await site.json("deliveries", "--job", job.id, "--state", "delivered")
    assert (logged["id"], logged["endpoint_id"], logged["event"]) == (first.id, endpoint, "job.completed")
    assert await site.json("replay", first.id) == {"replayed": 1}
    _, again = await site.hooks.reaches(2)
    assert (again.id, again.text) == (first.id, first.text)

    rotated = await site.json("rotate", endpoint)
    await site.json("replay", "--endpoint", endpoint)
    last = (await site.hooks.reaches(3))[-1]
    for secret in (created["secret"], rotated["secret"]):
        Webhook(secret).verify(last.text, dict(last.headers))

    assert (await site.json("disable", endpoint))["disabled_reason"] == "by an operator"
    assert (await site.json("enable", endpoint))["disabled_at"] is None
    assert await site.json("delete", endpoint) == {"deleted": endpoint}


async def test_a_secret_is_printed_alone_and_mistakes_are_explained(site: Site) -> None:
    made = await site.run("secret", "--user", "ada")
    assert made.out.strip() == await site.app.webhooks.default_secret("ada")
    assert "ada" in made.err
    assert (await site.run("replay")).code == Exit.USAGE
    refused = await site.run("create", "ftp://example.com")
    assert (refused.code, "https" in refused.err) == (Exit.REFUSED, True)
    assert (await site.run("delete", "ep_none")).code == Exit.REFUSED


def signed_by_fal(request: Request, keys: list[dict[str, str]]) -> bool:
    """Verify a request as fal's documentation tells receivers to, with the keys of the gateway."""
    names = ("request-id", "user-id", "timestamp")
    head = [request.headers[f"x-fal-webhook-{name}"] for name in names]
    message = "\n".join([*head, hashlib.sha256(request.text.encode()).hexdigest()]).encode()
    for key in keys:
        public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "=="))
        try:
            public.verify(bytes.fromhex(request.headers["x-fal-webhook-signature"]), message)
        except InvalidSignature:
            continue
        return True
    return False


async def test_fal_s_signature_is_verified_with_the_public_keys(site: Site) -> None:
    webhook = JobWebhook(site.hooks.url, shape=Shape.FAL, subject="request-1")
    await site.app.submit("echo", {"n": 1}, user_id="ada", webhook_url=webhook)
    (request,) = await site.hooks.reaches(1)
    async with httpx2.AsyncClient(base_url=site.url, trust_env=False) as http:
        keys = (await http.get("/.well-known/jwks.json")).json()["keys"]
    assert {(key["kty"], key["crv"]) for key in keys} == {("OKP", "Ed25519")}
    assert request.headers["x-fal-webhook-request-id"] == request.body["request_id"] == "request-1"
    assert signed_by_fal(request, keys)
    for forged in (
        Request(request.path, request.headers, request.text + " "),
        Request(request.path, {**request.headers, "x-fal-webhook-user-id": "bob"}, request.text),
        Request(request.path, {**request.headers, "x-fal-webhook-timestamp": "1"}, request.text),
    ):
        assert not signed_by_fal(forged, keys)
