"""Webhooks from the submit to the receiver: endpoints, signatures, failures, the log, and who may see what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from fairlead.app.fairlead import Fairlead
from fairlead.domain.config import Config
from fairlead.errors import InvalidInput, Permanent
from fairlead.executors.port import Call
from fairlead.gateway.app import create_gateway
from fairlead.gateway.metrics import samples_of
from tests.integration.gateway_site import client_of
from tests.integration.key_site import keys_of, until
from tests.webhook_receiver import Receiver, Request, receiver

BASE = "/api/v1/webhooks"
SECRET = "whsec_" + "A" * 43 + "="


@asynccontextmanager
async def running(engine: dict[str, str], **webhooks: Any) -> AsyncIterator[Fairlead]:
    settings = {"allow_http": True, "allow_private": True, "timeout": 5, **webhooks}
    app = Fairlead(Config.model_validate({"webhooks": settings}), **engine)

    @app.service("echo", limit=50)
    async def echo(call: Call) -> Any:
        return {"echo": call.params}

    @app.service("broken", limit=10)
    async def broken(call: Call) -> None:
        raise Permanent("this input will never work")

    async with app.running():
        yield app


@pytest.fixture(params=["embedded", "distributed"])
def engine(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def hooks() -> AsyncIterator[Receiver]:
    async with receiver() as this:
        yield this


def verified(request: Request, secret: str) -> Any:
    return Webhook(secret).verify(request.text, dict(request.headers))


async def test_the_events_of_a_job_arrive_signed_and_in_order(engine: dict[str, str], hooks: Receiver) -> None:
    async with running(engine) as app:
        secret = (await app.webhooks.rotate_default("ada")).secret
        fields: dict[str, Any] = {
            "webhook_url": f"{hooks.url}/a?b=c",
            "webhook_events": ["job.started", "job.completed"],
        }
        job = await app.submit("echo", {"n": 1}, user_id="ada", metadata={"order": 7}, **fields)
        await app.submit("echo", {"n": 2}, user_id="ada")
        broken = await app.submit("broken", user_id="ada", webhook_url=hooks.url)
        await hooks.reaches(3)
        of_job = [request for request in hooks.got if request.path == "/a?b=c"]
        assert [request.body["type"] for request in of_job] == fields["webhook_events"]
        data = verified(of_job[1], secret)["data"]
        assert (data["job_id"], data["user_id"], data["status"]) == (job.id, "ada", "COMPLETED")
        assert (data["result"], data["metadata"], data["feature_name"]) == ({"echo": {"n": 1}}, {"order": 7}, "echo")
        (failed,) = [verified(request, secret) for request in hooks.got if request.path == "/"]
        assert (failed["type"], failed["data"]["job_id"]) == ("job.failed", broken.id)
        assert failed["data"]["error"]["message"] == "this input will never work"
        with pytest.raises(WebhookVerificationError):
            verified(of_job[0], SECRET)
        page = await app.webhooks.deliveries()
        assert {each.id for each in page.data} == {request.id for request in hooks.got}


async def test_a_batch_tells_of_its_end_and_on_demand_of_its_jobs(engine: dict[str, str], hooks: Receiver) -> None:
    async with running(engine) as app:
        items = [{"input_data": {"n": n}} for n in range(3)]
        events = ["batch.ended", "job.completed"]
        first = await app.submit_batch(items, user_id="ada", feature_name="echo", webhook_url=f"{hooks.url}/end")
        await app.submit_batch(items, feature_name="echo", webhook_url=f"{hooks.url}/all", webhook_events=events)
        await hooks.reaches(5)
        (end,) = [request.body for request in hooks.got if request.path == "/end"]
        assert end["type"] == "batch.ended"
        assert (end["data"]["batch_id"], end["data"]["counts"]) == (first.id, {"COMPLETED": 3})
        of_second = sorted(request.body["type"] for request in hooks.got if request.path == "/all")
        assert of_second == ["batch.ended", "job.completed", "job.completed", "job.completed"]


async def test_a_receiver_that_hangs_holds_up_no_other(embedded: dict[str, str], hooks: Receiver) -> None:
    async with receiver() as other, running(embedded, concurrency=8) as app:
        hooks.open.clear()
        for n in range(20):
            await app.submit("echo", {"n": n}, webhook_url=hooks.url)
        await hooks.reaches(2)
        for n in range(20):
            await app.submit("echo", {"n": n}, webhook_url=other.url)
        await other.reaches(20)
        assert len(hooks.got) <= 8


async def test_a_failure_is_repeated_with_the_same_id_and_body(embedded: dict[str, str], hooks: Receiver) -> None:
    hooks.answer = lambda request: web.Response(status=500 if len(hooks.got) == 1 else 200, text="no\0pe")
    async with running(embedded) as app:
        await app.submit("echo", webhook_url=hooks.url)
        await hooks.reaches(1)

        async def failed_once() -> bool:
            (delivery,) = (await app.webhooks.deliveries()).data
            return len(delivery.log) == 1

        await until(failed_once)
        (delivery,) = (await app.webhooks.deliveries()).data
        assert delivery.state == "pending"
        assert delivery.next_at is not None
        assert 4 <= delivery.next_at - delivery.created_at <= 30
        assert (delivery.log[0]["status"], delivery.log[0]["response"]) == (500, "no pe")
        samples = samples_of(await app.readings())
        assert samples["fairlead_webhook_requests"] == [(("failed",), 1)]
        assert samples["fairlead_webhooks_waiting"] == [((), 1.0)]
        first, second = await hooks.reaches(2)
        assert (first.id, first.text) == (second.id, second.text)


async def test_an_endpoint_that_is_gone_is_disabled(embedded: dict[str, str], hooks: Receiver) -> None:
    hooks.answer = lambda request: web.Response(status=410 if request.path == "/gone" else 200)
    ops = {"url": f"{hooks.url}/ops", "secret": SECRET, "events": ["endpoint.disabled"]}
    async with running(embedded, ops=ops) as app:
        endpoint = (await app.webhooks.create(f"{hooks.url}/gone", user_id="ada")).endpoint
        await app.submit("echo", user_id="ada")
        await hooks.reaches(2)
        told = verified(hooks.got[1], SECRET)
        assert told["type"] == "endpoint.disabled"
        assert told["data"]["endpoint_id"] == endpoint.id
        assert samples_of(await app.readings())["fairlead_webhook_endpoints_disabled"] == [((), 1.0)]
        (finding,) = [each for each in await app.doctor() if each.code == "webhook-disabled"]
        assert finding.about == endpoint.id
        await app.webhooks.change(endpoint.id, enabled=True)
        assert not [each for each in await app.doctor() if each.code == "webhook-disabled"]


async def test_users_reach_their_own_endpoints_and_deliveries_only(embedded: dict[str, str], hooks: Receiver) -> None:
    async with running(embedded, all={"url": f"{hooks.url}/all", "secret": SECRET}) as app:
        keys = await keys_of(app)
        async with client_of(create_gateway(app)) as client:

            async def ask(who: str, method: str, path: str, **body: Any) -> httpx2.Response:
                headers = {"Authorization": f"Bearer {keys[who]}"}
                return await client.request(method, BASE + path, headers=headers, json=body or None)

            created = (await ask("ada", "POST", "/endpoints", url=f"{hooks.url}/ada")).json()
            secret, endpoint = created.pop("secret"), f"/endpoints/{created['id']}"
            assert created["user_id"] == "ada"
            await app.submit("echo", {"n": 1}, user_id="ada")
            await app.submit("echo", {"n": 2}, user_id="bob")
            await hooks.reaches(3)
            (own,) = [request for request in hooks.got if request.path == "/ada"]
            assert verified(own, secret)["data"]["result"] == {"echo": {"n": 1}}
            assert sum(request.path == "/all" for request in hooks.got) == 2
            # The deliveries to the system's endpoint are not ada's.
            listed = (await ask("ada", "GET", "/deliveries")).json()["data"]
            assert [each["id"] for each in listed] == [own.id]
            assert (await ask("bob", "GET", "/deliveries")).json()["data"] == []
            assert len((await ask("admin", "GET", "/deliveries")).json()["data"]) == 3
            assert (await ask("ada", "PUT", endpoint)).status_code == 422, "the body is required"
            assert (await ask("bob", "GET", "/endpoints")).json() == {"data": []}
            for method, path, body in (
                ("GET", endpoint, {}),
                ("PUT", endpoint, {"enabled": False}),
                ("DELETE", endpoint, {}),
                ("POST", f"{endpoint}/rotate", {}),
                ("GET", f"/deliveries/{own.id}", {}),
            ):
                assert (await ask("bob", method, path, **body)).status_code == 404
            assert (await ask("bob", "POST", "/endpoints", url=hooks.url, user_id="ada")).status_code == 403
            assert (await ask("bob", "POST", "/deliveries/replay", ids=[own.id])).json() == {"replayed": 0}
            # The configuration's endpoint can only be changed there.
            assert (await ask("admin", "DELETE", "/endpoints/config_all")).status_code == 409
            shown = (await ask("ada", "GET", endpoint)).text
            assert secret not in shown
            rotated = (await ask("ada", "POST", f"{endpoint}/rotate")).json()["secret"]
            assert (await ask("ada", "POST", "/deliveries/replay", ids=[own.id])).json() == {"replayed": 1}
            again = (await hooks.reaches(4))[3]
            assert again.id == own.id
            assert verified(again, secret) == verified(again, rotated) == own.body
            assert (await ask("ada", "DELETE", endpoint)).status_code == 204
            audited = [record.action for record in (await app.audit()).data]
            assert "webhook.create" not in audited, "a user's own actions are not audited"


async def test_bad_urls_and_events_are_refused_at_submit(embedded: dict[str, str]) -> None:
    async with running(embedded, allow_http=False, allow_private=False) as app:
        for url in (
            "http://example.com",
            "https://localhost/x",
            "https://10.0.0.1",
            "https://u:p@example.com",
            "x" * 3000,
        ):
            with pytest.raises(InvalidInput, match="webhook_url"):
                await app.submit("echo", webhook_url=url)
        with pytest.raises(InvalidInput, match=r"job\.done"):
            await app.submit("echo", webhook_url="https://example.com", webhook_events=["job.done"])
        with pytest.raises(InvalidInput, match="needs a webhook_url"):
            await app.submit("echo", webhook_events=["job.failed"])
        assert (await app.list_jobs()).data == []
