"""What holds beyond single requests: fairness, webhooks, tickets of uploads, and a proxy that forwards nothing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.integration.fal_site import ADMIN, open_fal
from tests.webhook_receiver import receiver

USERS, SLOTS, EACH = 50, 4, 3


async def test_fifty_users_share_four_slots_and_all_get_their_results(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority, limit=SLOTS) as site:
        client = site.client()

        async def ask(user: str) -> Any:
            return await client.subscribe("acme/flux", {}, headers={"X-Fairlead-User": user})

        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(f"user-{user}")) for _ in range(EACH) for user in range(USERS)]
            await site.endpoint.reaches(open=SLOTS)
            site.endpoint.gate.set()
        assert sorted(task.result()["user"] for task in asked) == sorted(
            f"user-{user}" for _ in range(EACH) for user in range(USERS)
        )
        assert site.endpoint.most == SLOTS


async def test_a_newcomer_waits_for_at_most_one_request_of_each_active_user(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority, limit=1) as site:
        client = site.client()
        active = 5
        handles = [
            await client.submit("acme/flux", {}, headers={"X-Fairlead-User": f"user-{user}"})
            for user in range(active)
            for _ in range(6)
        ]
        await site.endpoint.reaches(open=1)
        newcomer = await client.submit("acme/flux", {}, headers={"X-Fairlead-User": "newcomer"})
        site.endpoint.gate.set()
        await newcomer.get()
        assert [call.user_id for call in site.endpoint.calls].index("newcomer") <= 1 + active
        for handle in handles:
            await handle.get()


async def test_a_webhook_is_verified_with_the_key_of_the_gateway(tmp_path: Path, authority: Path) -> None:
    hooks_config = {"allow_http": True, "allow_private": True}
    async with receiver() as hooks, open_fal(tmp_path, authority, webhooks=hooks_config) as site, site.http() as http:
        done = await site.client().submit("acme/echo", {"n": 1}, webhook_url=f"{hooks.url}/done?a=b")
        failed = await site.client().submit("acme/picky", {}, webhook_url=f"{hooks.url}/failed")
        got = {request.body["request_id"]: request for request in await hooks.reaches(2)}
        jwks = (await http.get("/.well-known/jwks.json")).json()["keys"]
    body = got[done.request_id].body
    assert (body["status"], body["payload"], body["gateway_request_id"]) == ("OK", {"echo": {"n": 1}}, done.request_id)
    assert got[failed.request_id].body["status"] == "ERROR"
    assert "no such size" in got[failed.request_id].body["error"]
    for request in got.values():
        digest = hashlib.sha256(request.text.encode()).hexdigest()
        names = ("request-id", "user-id", "timestamp")
        message = "\n".join([*(request.headers[f"x-fal-webhook-{name}"] for name in names), digest])
        signature = bytes.fromhex(request.headers["x-fal-webhook-signature"])
        x = jwks[0]["x"]
        key = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(x + "=" * (-len(x) % 4)))
        key.verify(signature, message.encode())  # raises if it is not valid


async def test_the_files_of_a_webhook_are_read_without_a_key(tmp_path: Path, authority: Path) -> None:
    hooks_config = {"allow_http": True, "allow_private": True}
    async with (
        receiver() as hooks,
        open_fal(tmp_path, authority, webhooks=hooks_config, admin_key=ADMIN) as site,
        site.http() as stranger,
    ):
        key = (await site.app.create_key("user", user_id="ada")).text
        made = await site.client(key).submit("acme/draw", {}, webhook_url=hooks.url)
        (request,) = await hooks.reaches(1)
        (image,) = request.body["payload"]["images"]
        (shown,) = (await made.get())["images"]
        url = image["url"]
        assert image == {**shown, "url": url}
        assert url.partition("?")[0] == shown["url"].partition("?")[0]
        assert (await stranger.get(url)).content == b"\x89PNG"
        assert (await stranger.get(url.partition("?")[0])).status_code == 401


async def test_a_ticket_of_an_upload_does_not_read_and_that_of_a_file_does_not_write(
    tmp_path: Path, authority: Path
) -> None:
    async with open_fal(tmp_path, authority, admin_key=ADMIN) as site, site.http() as http:
        ada = {"Authorization": f"Key {(await site.app.create_key('user', user_id='ada')).text}"}
        bob = {"Authorization": f"Key {(await site.app.create_key('user', user_id='bob')).text}"}
        made = await http.post("/fal/storage/upload/initiate", json={"file_name": "a.txt"}, headers=ada)
        upload, file = made.json()["upload_url"], made.json()["file_url"]
        put, read = upload.partition("?ticket=")[2], file.partition("?ticket=")[2]
        path = upload.partition("?")[0]
        assert (await http.put(f"{path}?ticket={read}", content=b"evil")).status_code == 401
        assert (await http.put(path, content=b"evil")).status_code == 401
        assert (await http.put(path, content=b"evil", headers=bob)).status_code == 404
        assert (await http.get(f"{file.partition('?')[0]}?ticket={put}")).status_code == 401
        for _ in range(2):  # a client that got no answer sends the bytes again
            assert (await http.put(upload, content=b"good")).status_code == 200
        assert (await http.get(file)).text == "good"
        assert (await http.get(file.partition("?")[0])).status_code == 401


async def test_parts_are_stored_once_and_in_order(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority) as site, site.http() as http:
        made = (await http.post("/fal/storage/upload/initiate-multipart", json={"file_name": "a.txt"})).json()
        path, _, ticket = made["upload_url"].partition("?")
        for part, content, status in (
            (2, b"x", 422),
            (1, b"one ", 200),
            (1, b"one ", 200),
            (2, b"two", 200),
            (9, b"x", 422),
        ):
            answer = await http.put(f"{path}/{part}?{ticket}", content=content)
            assert answer.status_code == status, (part, answer.text)
            if status == 200:
                assert answer.json()["partNumber"] == part
        for _ in range(2):
            assert (await http.post(f"{path}/complete?{ticket}", json={"parts": []})).status_code == 200
        assert (await http.get(made["file_url"])).text == "one two"


async def test_the_proxy_gives_no_access_that_the_caller_does_not_have(tmp_path: Path, authority: Path) -> None:
    async with open_fal(tmp_path, authority, admin_key=ADMIN) as site, site.http() as http:
        user = {"Authorization": f"Key {(await site.app.create_key('user', user_id='ada')).text}"}

        async def ask(target: str | None, method: str = "POST", **headers: str) -> int:
            wanted = {} if target is None else {"x-fal-target-url": target}
            return (await http.request(method, "/fal/proxy", json={}, headers={**wanted, **headers})).status_code

        assert await ask("https://queue.fal.run/acme/echo") == 401
        assert await ask("https://queue.fal.run/acme/echo", **user) == 200
        assert await ask(None, **user) == 422
        assert await ask("https://queue.fal.run/../admin/keys", "GET", **user) == 405
        assert await ask("https://queue.fal.run/..%2fadmin%2fkeys", "GET", **user) == 405
        assert await ask("https://queue.fal.run/proxy", **user) == 422
        for host in ("127.0.0.1", "169.254.169.254", "evil.example", "queue.fal.run@evil.example"):
            assert await ask(f"https://{host}/acme/echo", **user) == 422
        other = await site.app.submit("echo", user_id="bob")
        for path in ("", "/status", "/status/stream"):
            assert await ask(f"https://queue.fal.run/acme/echo/requests/{other.id}{path}", "GET", **user) == 404
        assert await ask("https://rest.fal.ai/tokens/", **user) == 404
