"""Files over HTTP: uploads, downloads, tickets, and what callers may not do with them."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlead.gateway.file_content import safe_type
from tests.integration.gateway_site import Site, client_of

MakeSite = Callable[..., Awaitable[Site]]
ADMIN = "a" * 32
CONTENT = bytes(range(256)) * 8


async def upload(client: httpx2.AsyncClient, content: bytes = CONTENT, **query: Any) -> dict[str, Any]:
    query = {"filename": "cat.png", **query}
    response = await client.post("/api/v1/files", params=query, content=content)
    assert response.status_code == 201, response.text
    found: dict[str, Any] = response.json()
    return found


async def users(make_site: MakeSite) -> tuple[Site, httpx2.AsyncClient, httpx2.AsyncClient]:
    """A site with a client of ada and a client of bob."""
    site = await make_site(admin_key=ADMIN)
    clients = []
    for user in ("ada", "bob"):
        key = await site.app.create_key("user", user_id=user)
        client = client_of(site.gateway)
        client.headers["Authorization"] = f"Bearer {key.text}"
        clients.append(client)
    site.client.headers["Authorization"] = f"Bearer {ADMIN}"
    return site, clients[0], clients[1]


async def test_a_plain_upload_is_read_back(site: Site) -> None:
    file = await upload(site.client, user_id="ada", purpose="batch", expires_after=60)
    assert (file["status"], file["size"], file["sha256"]) == ("ready", 2048, hashlib.sha256(CONTENT).hexdigest())
    assert (file["user_id"], file["purpose"], file["content_type"]) == ("ada", "batch", "image/png")
    assert file["expires_at"] > file["created_at"]
    response = await site.client.get(f"/files/{file['id']}")
    assert response.content == CONTENT
    assert response.headers["content-type"] == "image/png"
    again = (await site.client.get(f"/api/v1/files/{file['id']}")).json()
    assert again["name"] == "cat.png"


async def test_the_type_that_curl_sends_is_not_the_type_of_the_file(site: Site) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response = await site.client.post("/api/v1/files?filename=cat.png", content=CONTENT, headers=headers)
    assert response.json()["content_type"] == "image/png"


async def test_a_cursor_that_is_none_is_refused(site: Site) -> None:
    response = await site.client.get("/api/v1/files", params={"cursor": "zzz"})
    assert (response.status_code, response.json()["pointer"]) == (422, "/cursor")


async def test_a_form_may_have_its_fields_after_the_file(site: Site) -> None:
    fields = [
        ("file", ("böse.txt", b"one\r\n--two", "text/plain")),
        ("purpose", (None, "batch")),
        ("sha256", (None, hashlib.sha256(b"one\r\n--two").hexdigest())),
    ]
    response = await site.client.post("/api/v1/files", files=fields)
    assert response.status_code == 201, response.text
    file = response.json()
    assert (file["name"], file["purpose"], file["content_type"]) == ("böse.txt", "batch", "text/plain")
    assert (await site.client.get(f"/files/{file['id']}")).content == b"one\r\n--two"


BAD_FORMS = [
    (b"", "x"),
    (b"--x\r\n", "x"),
    (b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc', "x"),
    (b'--x\r\nContent-Disposition: form-data; name="other"; filename="a"\r\n\r\nabc\r\n--x--\r\n', "x"),
    (b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nabc\r\n--x--\r\n', "x"),
    (b'--x\r\nContent-Disposition: form-data; name="p"\r\n\r\n' + b"a" * 5000 + b"\r\n--x--\r\n", "x"),
    (b"--x\r\n" + b"A" * 10_000, "x"),
    (b"nonsense", "x"),
    (b"nonsense", ""),
]


async def test_a_form_that_cannot_be_read_is_refused(site: Site) -> None:
    for body, boundary in BAD_FORMS:
        type_ = f"multipart/form-data; boundary={boundary}" if boundary else "multipart/form-data"
        response = await site.client.post("/api/v1/files", content=body, headers={"Content-Type": type_})
        assert response.status_code == 422, (body, response.text)
    assert (await site.client.get("/api/v1/files")).json()["data"] == []


async def test_parts_of_a_file_and_conditions(site: Site) -> None:
    file = await upload(site.client)
    url, tag = f"/files/{file['id']}", f'"{file["sha256"]}"'
    whole = await site.client.get(url)
    assert whole.headers["etag"] == tag
    for asked, expected, shown in (
        ("bytes=0-9", CONTENT[:10], "bytes 0-9/2048"),
        ("bytes=2040-", CONTENT[2040:], "bytes 2040-2047/2048"),
        ("bytes=-8", CONTENT[-8:], "bytes 2040-2047/2048"),
        ("bytes=2000-99999", CONTENT[2000:], "bytes 2000-2047/2048"),
    ):
        response = await site.client.get(url, headers={"Range": asked, "If-Range": tag})
        assert (response.status_code, response.content) == (206, expected)
        assert response.headers["content-range"] == shown
    for ignored in ("bytes=9-0", "bytes=-", "lines=1-2", "bytes=0-1,4-5", "bytes=a-b"):
        response = await site.client.get(url, headers={"Range": ignored})
        assert (response.status_code, response.content) == (200, CONTENT)
    response = await site.client.get(url, headers={"Range": "bytes=0-9", "If-Range": '"other"'})
    assert response.status_code == 200
    response = await site.client.get(url, headers={"Range": "bytes=2048-"})
    assert (response.status_code, response.headers["content-range"]) == (416, "bytes */2048")
    for given in (tag, f'W/{tag}, "x"', "*"):
        response = await site.client.get(url, headers={"If-None-Match": given})
        assert (response.status_code, response.content) == (304, b"")
    for given in (tag, f'"x" , {tag}', "*"):
        response = await site.client.get(url, headers={"If-Match": given})
        assert (response.status_code, response.content) == (200, CONTENT)
    for given in ('"x"', f"W/{tag}", ""):  # weak tags match nothing, and If-Match goes before the others
        response = await site.client.get(url, headers={"If-Match": given, "If-None-Match": tag, "Range": "bytes=0-9"})
        assert (response.status_code, response.json()["code"]) == (412, "precondition_failed")
        assert (await site.client.head(url, headers={"If-Match": given})).status_code == 412
    head = await site.client.head(url)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "2048")
    empty = await upload(site.client, b"")
    response = await site.client.get(f"/files/{empty['id']}")
    assert (response.status_code, response.content) == (200, b"")


TYPES = [
    ("text/html", "application/octet-stream", False),
    ("text/HTML; charset=utf-8", "application/octet-stream", False),
    ("image/svg+xml", "application/octet-stream", False),
    ("application/xhtml+xml", "application/octet-stream", False),
    ("application/atom+xml", "application/octet-stream", False),
    ("text/javascript", "application/octet-stream", False),
    ("application/pdf", "application/pdf", False),
    ("text/csv", "text/plain; charset=utf-8", True),
    ("audio/mpeg", "audio/mpeg", True),
    ("application/json", "application/json", True),
]


async def test_a_file_never_runs_as_a_page(site: Site) -> None:
    for given, sent, shown in TYPES:
        response = await site.client.post(
            "/api/v1/files", params={"filename": "a.b"}, content=b"<script>alert(1)", headers={"Content-Type": given}
        )
        response = await site.client.get(f"/files/{response.json()['id']}")
        assert response.headers["content-type"] == sent == safe_type(given)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in response.headers["content-security-policy"]
        assert response.headers["content-disposition"].startswith("inline" if shown else "attachment")


NAMES = [
    ("../../../etc/passwd", "passwd"),
    ("..\\..\\boot.ini", "boot.ini"),
    ("/", "file"),
    ("..", "file"),
    ('a"; filename="b.exe', 'a"; filename="b.exe'),
    ("a\r\nSet-Cookie: x=1.png", "aSet-Cookie: x=1.png"),
    ("é" * 300, "é" * 127),
]


async def test_a_name_is_only_a_name(site: Site, tmp_path: Path) -> None:
    for given, kept in NAMES:
        file = await upload(site.client, filename=given)
        assert file["name"] == kept
        response = await site.client.get(f"/files/{file['id']}")
        assert "set-cookie" not in response.headers
        assert response.headers["content-disposition"].count('filename="') == 1
    folder = tmp_path / "jobs.db-files"
    inside = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}
    assert inside
    assert all(len(part) == 2 for part in inside)


async def test_a_file_is_its_user_s(make_site: MakeSite) -> None:
    site, ada, bob = await users(make_site)
    file = await upload(ada)
    assert file["user_id"] == "ada"
    for method, path in (
        ("GET", f"/files/{file['id']}"),
        ("HEAD", f"/files/{file['id']}"),
        ("GET", f"/api/v1/files/{file['id']}"),
        ("DELETE", f"/api/v1/files/{file['id']}"),
        ("GET", f"/api/v1/uploads/{file['id']}"),
        ("PATCH", f"/api/v1/uploads/{file['id']}"),
        ("POST", f"/api/v1/uploads/{file['id']}/complete"),
        ("GET", "/files/..%2f..%2fetc%2fpasswd"),
        ("GET", "/files/file-zz"),
        ("GET", "/api/v1/files/%00"),
    ):
        response = await bob.request(method, path, headers={"Upload-Offset": "0"})
        assert response.status_code == 404, (method, path)
    assert (await bob.get("/api/v1/files")).json()["data"] == []
    assert (await bob.get("/api/v1/files", params={"user_id": "ada"})).status_code == 403
    body = {"user_id": "bob", "feature_name": "echo", "input_data": {"image": {"$file": file["id"]}}}
    assert (await bob.post("/api/v1/jobs", json=body)).status_code == 422
    assert (await bob.post("/api/v1/files", params={"user_id": "ada"}, content=b"x")).status_code == 403
    assert [each["id"] for each in (await site.client.get("/api/v1/files")).json()["data"]] == [file["id"]]
    for client in (ada, bob):
        await client.aclose()


async def test_a_ticket_reads_one_file_until_it_expires(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site, ada, bob = await users(make_site)
    file, other = await upload(ada), await upload(bob, b"other")
    stranger = client_of(site.gateway)
    for _ in range(2):  # a browser asks for the parts of a film with the same URL
        response = await stranger.get(file["url"], headers={"Range": "bytes=0-9"})
        assert (response.status_code, response.content) == (206, CONTENT[:10])
    ticket = file["url"].partition("=")[2]
    until, _, signed = ticket.partition(".")
    refused = [
        f"/files/{other['id']}?ticket={ticket}",
        f"/files/{file['id']}?ticket={int(until) + 1}.{signed}",
        f"/files/{file['id']}?ticket={ticket[:-1]}",
        f"/files/{file['id']}?ticket={ticket}&ticket={ticket}",
        f"/files/{file['id']}?ticket=",
        f"/files/{file['id']}?ticket=9999999999999999.{signed}",
        f"/files/{file['id']}",
        f"/api/v1/files/{file['id']}?ticket={ticket}",
    ]
    for url in refused:
        assert (await stranger.get(url)).status_code == 401, url
    assert (await stranger.delete(f"/api/v1/files/{file['id']}?ticket={ticket}")).status_code == 401
    now = site.app.now()
    monkeypatch.setattr(site.app.files, "_now", lambda: now + site.app.config.artifacts.ticket_ttl + 2)
    assert (await stranger.get(file["url"])).status_code == 401
    monkeypatch.undo()
    assert (await ada.delete(f"/api/v1/files/{file['id']}")).status_code == 204
    assert (await stranger.get(file["url"])).status_code == 404
    for client in (ada, bob, stranger):
        await client.aclose()


async def test_an_upload_in_parts_continues_where_it_was_cut(site: Site) -> None:
    begun = (await site.client.post("/api/v1/uploads", json={"filename": "film.mp4", "user_id": "ada"})).json()
    url = f"/api/v1/uploads/{begun['id']}"
    assert (begun["status"], begun["offset"], begun["url"]) == ("uploading", 0, None)
    assert (await site.client.get(f"/files/{begun['id']}")).status_code == 404

    async def send(offset: Any, content: Any) -> httpx2.Response:
        return await site.client.patch(url, content=content, headers={"Upload-Offset": str(offset)})

    assert (await send(0, b"a" * 1000)).json()["offset"] == 1000

    async def cut() -> AsyncIterator[bytes]:
        yield b"b" * 500
        raise ConnectionError

    assert (await send(1000, cut())).status_code == 500
    state = await site.client.get(url)
    assert (state.json()["offset"], state.headers["upload-offset"]) == (1000, "1000")
    assert (await send(0, b"x")).status_code == 409
    assert (await send(5000, b"x")).json()["details"]["offset"] == 1000
    assert (await send("x", b"x")).status_code == 422
    first, second = await asyncio.gather(send(1000, b"b" * 500), send(1000, b"b" * 500))
    assert sorted((first.status_code, second.status_code)) == [200, 409]
    done = (await site.client.post(f"{url}/complete")).json()
    content = b"a" * 1000 + b"b" * 500
    assert (done["status"], done["size"], done["sha256"]) == ("ready", 1500, hashlib.sha256(content).hexdigest())
    assert (await site.client.get(done["url"])).content == content
    assert (await site.client.post(f"{url}/complete")).status_code == 409
    assert (await send(1500, b"x")).status_code == 409
    while await site.app.files.sweep(10):
        pass
    totals = await site.app._runtime.store.file_totals()
    assert (totals.files, totals.doomed, totals.size) == (1, 0, 1500)


async def test_what_cannot_be_stored_is_refused(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = await make_site()
    bomb = gzip.compress(b"\0" * 10_000_000)
    response = await site.client.post("/api/v1/files", content=bomb, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 415
    response = await site.client.post("/api/v1/files", params={"sha256": "0" * 64}, content=b"x")
    assert (response.status_code, response.json()["pointer"]) == (422, "/sha256")
    for query in ({"purpose": "a b"}, {"expires_after": -1}, {"user_id": "a\nb"}):
        assert (await site.client.post("/api/v1/files", params=query, content=b"x")).status_code == 422
    config = site.app.files.config.model_copy(update={"max_file": 1024})
    monkeypatch.setattr(site.app.files, "config", config)
    assert (await site.client.post("/api/v1/files", content=b"x" * 1025)).status_code == 413
    assert (await site.client.get("/api/v1/files")).json()["data"] == []
    begun = (await site.client.post("/api/v1/uploads", json={"filename": "a"})).json()
    url, headers = f"/api/v1/uploads/{begun['id']}", {"Upload-Offset": "0"}
    assert (await site.client.patch(url, content=b"x" * 1000, headers=headers)).status_code == 200
    headers = {"Upload-Offset": "1000"}
    assert (await site.client.patch(url, content=b"x" * 25, headers=headers)).status_code == 413


async def test_a_user_may_keep_so_many_bytes(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site = await make_site()
    config = site.app.files.config.model_copy(update={"max_user_bytes": 1000})
    monkeypatch.setattr(site.app.files, "config", config)
    kept = await upload(site.client, b"a" * 600, user_id="ada")
    await upload(site.client, b"b" * 900, user_id="bob")
    refused = await site.client.post("/api/v1/files", params={"user_id": "ada"}, content=b"c" * 401)
    assert (refused.status_code, refused.json()["code"]) == (413, "file_quota")
    form = {"file": ("a.jsonl", b"c" * 401), "purpose": (None, "batch")}
    refused = await site.client.post("/v1/files", files=form, headers={"X-Fairlead-User": "ada"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "file_quota"), refused.text
    begun = (await site.client.post("/api/v1/uploads", json={"filename": "a", "user_id": "ada"})).json()
    url = f"/api/v1/uploads/{begun['id']}"
    for offset, size, status in ((0, 300, 200), (300, 101, 413), (300, 100, 200)):
        sent = await site.client.patch(url, content=b"d" * size, headers={"Upload-Offset": str(offset)})
        assert sent.status_code == status, sent.text
    assert (await site.client.post(f"{url}/complete")).status_code == 200
    begun = await site.client.post("/api/v1/uploads", json={"filename": "a", "user_id": "ada"})
    assert (begun.status_code, begun.json()["code"]) == (413, "file_quota"), "nothing is left"
    await site.client.delete(f"/api/v1/files/{kept['id']}")
    await upload(site.client, b"c" * 600, user_id="ada")


@pytest.mark.parametrize("purpose", ["value", "result", "batch_output"])
async def test_no_upload_has_a_purpose_of_files_that_jobs_and_batches_make(site: Site, purpose: str) -> None:
    fields = {"filename": "a", "user_id": "eve", "purpose": purpose}
    for refused in (
        await site.client.post("/api/v1/files", params=fields, content=b"c"),
        await site.client.post("/api/v1/uploads", json=fields),
        await site.client.post("/api/v1/files", files={"file": ("a", b"c"), "purpose": (None, purpose)}),
    ):
        problem = refused.json()
        assert (refused.status_code, problem["code"], problem["pointer"]) == (422, "invalid_input", "/purpose")
        assert "give upload, or any other name" in problem["detail"]


async def test_files_are_listed_page_by_page(site: Site) -> None:
    names = [(await upload(site.client, str(n).encode(), user_id="ada"))["id"] for n in range(5)]
    await upload(site.client, user_id="bob")
    query: dict[str, Any] = {"user_id": "ada", "limit": 2}
    found = []
    while True:
        page = (await site.client.get("/api/v1/files", params=query)).json()
        found += [each["id"] for each in page["data"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert found == names[::-1]
    assert (await site.client.get("/api/v1/files", params={"cursor": "nonsense"})).status_code == 422


async def test_a_file_that_a_job_uses_is_not_deleted(site: Site) -> None:
    file = await upload(site.client, user_id="ada")
    job_id = await site.submit(input_data={"image": {"$file": file["id"]}})
    response = await site.client.delete(f"/api/v1/files/{file['id']}")
    assert (response.status_code, response.json()["code"]) == (409, "wrong_state")
    assert response.json()["title"] == "The current state does not allow this"
    job = await site.app.wait(job_id, 30)
    assert job.result == {"echo": {"image": {"$file": file["id"]}}}
    await site.app.delete(job_id)
    assert (await site.client.delete(f"/api/v1/files/{file['id']}")).status_code == 204
