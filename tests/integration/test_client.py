"""`fairlead.Client` and `AsyncClient` against a real gateway over real connections, some of which break."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fairlead
from fairlead import (
    AsyncClient,
    Client,
    JobFailed,
    JobStatus,
    NotFound,
    Priority,
    ResultTimeout,
    Submission,
    WrongState,
)
from fairlead.client import Forbidden, NoConnection, NotAGateway, Unauthorized, patience
from fairlead.errors import ConfigError, InvalidInput, Unavailable, UnknownFeature
from tests.integration.gateway_site import Site, served

UNKNOWN = "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)


@pytest.fixture
async def url(site: Site) -> AsyncIterator[str]:
    async with served(site.gateway) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url) as client:
        yield client


class Breaking:
    """A proxy in front of the gateway: `cut` says for each connection after how many bytes of responses it is
    closed."""

    def __init__(self, port: int, cut: Callable[[int], int | None]) -> None:
        self._port = port
        self._cut = cut
        self.connections = 0

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self._cut(self.connections)
        self.connections += 1
        there, out = await asyncio.open_connection("127.0.0.1", self._port)
        sending = asyncio.create_task(_pipe(reader, out))
        try:
            while data := await there.read(65536):
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                writer.write(data)
                await writer.drain()
                if left == 0:
                    break
        except ConnectionError:
            pass
        finally:
            sending.cancel()
            writer.transport.abort()
            out.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


@asynccontextmanager
async def breaking(url: str, cut: Callable[[int], int | None]) -> AsyncIterator[tuple[str, Breaking]]:
    proxy = Breaking(int(url.rpartition(":")[2]), cut)
    server = await asyncio.start_server(proxy.pass_on, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", proxy


async def test_from_submit_to_result(client: AsyncClient) -> None:
    job = await client.submit("echo", {"n": 1}, user_id="ada", priority="high", metadata={"trace": "t"})
    assert job.receipt.priority is Priority.HIGH
    assert not job.receipt.replayed
    assert await job.result(timeout=10) == {"echo": {"n": 1}}
    view = await job.get()
    assert (view.status, view.user_id, view.metadata) == (JobStatus.COMPLETED, "ada", {"trace": "t"})
    assert view.finished_at is not None
    assert view.created_at <= view.finished_at


async def test_the_app_and_the_client_return_the_same_times(client: AsyncClient, site: Site) -> None:
    before = datetime.now(UTC) - timedelta(seconds=60)
    job = await client.submit("echo", {"n": 1}, user_id="ada")
    await job.result(timeout=10)
    later = await client.submit("echo", user_id="ada", delay=3600)
    batch = await client.submit_batch([{"feature_name": "echo", "input_data": {}}], user_id="ada")
    ended = await batch.wait(10)
    here, there = await site.app.get(job.id), await job.get()
    for mine, own in (
        (there.created_at, here.created_at),
        (there.finished_at, here.finished_at),
        (later.receipt.scheduled_at, (await site.app.get(later.id)).scheduled_at),
        (ended.created_at, (await site.app.get_batch(batch.id)).created_at),
        (ended.finished_at, (await site.app.get_batch(batch.id)).finished_at),
    ):
        assert mine is not None
        assert own is not None
        assert mine.tzinfo is own.tzinfo is UTC
        assert before < mine
        # Responses have milliseconds.
        assert timedelta() <= own - mine < timedelta(milliseconds=1)
    [item] = [item async for item in site.app.batch_results(batch.id)]
    assert item.finished_at is not None
    assert item.finished_at.tzinfo is UTC
    assert there.as_dict()["created_at"] == here.as_dict()["created_at"]


async def test_the_synchronous_client_does_the_same(url: str, site: Site) -> None:
    def use() -> Iterator[Any]:
        with Client(url) as client:
            job = client.submit("gated", user_id="ada")
            events = job.watch()
            yield next(events)["type"]
            yield client.list(user_id="ada").data[0].job_id == job.id
            try:
                job.result(timeout=0.05)
            except ResultTimeout as error:
                yield error.job_id == job.id
            yield client.cancel(job.id).status
            yield [event["type"] for event in events][-1]
            yield [one.result(timeout=10) for one in client.submit_many([Submission("echo", {"n": n}) for n in (1, 2)])]

    assert await asyncio.to_thread(lambda: list(use())) == [
        "SNAPSHOT",
        True,
        True,
        JobStatus.CANCELLED,
        "JOB_CANCELLED",
        [{"echo": {"n": 1}}, {"echo": {"n": 2}}],
    ]


async def test_a_queued_job_has_a_position(client: AsyncClient, site: Site) -> None:
    await client.submit("gated")
    await site.gate.entered.wait()
    await client.submit("gated", user_id="bob")
    job = await client.submit("gated", user_id="cleo")
    view = await client.get(job.id)
    assert view.status is JobStatus.PENDING
    assert view.position is not None
    assert view.estimated_wait is not None
    assert view.estimated_wait.low <= view.estimated_wait.high
    why = await client.why(job.id)
    assert (why.status, why.position) == (JobStatus.PENDING, view.position)
    assert [reason.code for reason in why.reasons] == ["service_full", "in_line"]
    assert why.reasons[0].message.lower() in why.summary.lower()


async def test_pages(client: AsyncClient) -> None:
    await client.submit_many([Submission("echo", {"n": n}, user_id="ada") for n in range(5)])
    first = await client.list(user_id="ada", limit=3)
    second = await client.list(user_id="ada", limit=3, cursor=first.next_cursor)
    assert [len(first.data), len(second.data), second.next_cursor] == [3, 2, None]
    assert (await client.list(status=JobStatus.SCHEDULED)).data == []


async def test_refusals_are_the_errors_of_the_application(client: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await client.get(UNKNOWN)
    with pytest.raises(UnknownFeature) as unknown:
        await client.submit("no_such_service")
    assert unknown.value.pointer == "/feature_name"
    with pytest.raises(InvalidInput):
        await client.submit("echo", priority="urgent")
    for wrong in ("..", f"{UNKNOWN}/why", 7):
        with pytest.raises(InvalidInput, match="a job id is a UUID"):
            await client.get(wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownFeature):
        await client.submit_many([Submission("no_such_service"), Submission("nor_this")])
    with pytest.raises(InvalidInput, match="not JSON"):
        await client.submit("echo", {"x": float("nan")})
    with pytest.raises(InvalidInput, match="not JSON"):
        await client.submit("echo", {"x": object()})
    with pytest.raises(InvalidInput, match="is a Submission"):
        await client.submit_many([{"feature_name": "echo"}])  # type: ignore[list-item]
    job = await client.submit("broken")
    with pytest.raises(JobFailed, match="never work") as failed:
        await job.result(timeout=10)
    assert not failed.value.retryable
    with pytest.raises(WrongState):
        await job.resume()
    with pytest.raises(WrongState) as ended:
        await job.cancel()
    assert ended.value.details["status"] == "FAILED"
    with pytest.raises(NotFound):
        await anext(client.watch(UNKNOWN))


async def test_a_failed_job_is_resumed(client: AsyncClient, site: Site) -> None:
    job = await client.submit("flaky")
    with pytest.raises(JobFailed) as failed:
        await job.result(timeout=10)
    assert failed.value.retryable
    site.gate.opened.set()
    await job.resume()
    assert await job.result(timeout=10) == {"worked": True}
    await client.delete(job.id)
    with pytest.raises(NotFound):
        await job.get()


async def test_a_submit_whose_response_is_lost_creates_one_job(url: str, site: Site) -> None:
    async with breaking(url, lambda n: 10 if n < 2 else None) as (broken, proxy), AsyncClient(broken) as client:
        job = await client.submit("echo", {"n": 1})
        assert job.receipt.replayed
        many = await client.submit_many([Submission("echo", {"n": n}) for n in range(3)])
        assert proxy.connections >= 3
        assert len(await site.job_ids()) == 1 + len(many)


async def test_a_cancel_whose_response_is_lost_is_recognised(url: str, site: Site) -> None:
    job_id = await site.submit(feature_name="gated")
    async with breaking(url, lambda n: 10 if n == 0 else None) as (broken, _), AsyncClient(broken) as client:
        assert (await client.cancel(job_id)).status is JobStatus.CANCELLED


async def test_a_cancel_succeeds_although_several_responses_are_cut_off(url: str, site: Site) -> None:
    job_id = await site.submit(feature_name="gated")
    cuts = {0: 10, 2: 10}
    async with breaking(url, cuts.get) as (broken, proxy):
        # Each response has its own connection: the cancel is cut off, and then the read that checks it.
        async with AsyncClient(broken) as client:
            client._http.headers["connection"] = "close"
            assert (await client.cancel(job_id)).status is JobStatus.CANCELLED
        assert proxy.connections == 4


async def test_a_wait_times_out_while_the_gateway_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with AsyncClient(f"http://127.0.0.1:{port}", patience=60) as client:
        with pytest.raises(NoConnection):
            await client.wait(UNKNOWN, 0.2)


async def test_the_user_of_a_users_key_is_implied(make_site: Any) -> None:
    site = await make_site(admin_key="secret-secret-secret")
    key = (await site.app.create_key("user", user_id="ada")).text
    async with served(site.gateway) as port, AsyncClient(f"http://127.0.0.1:{port}", key) as client:
        jobs = [await client.submit("echo"), *await client.submit_many([Submission("echo"), Submission("echo")])]
        assert {(await job.get()).user_id for job in jobs} == {"ada"}
        with pytest.raises(Forbidden):
            await client.submit("echo", user_id="bob")


async def test_a_watch_survives_broken_connections(url: str, site: Site) -> None:
    job_id = await site.submit(feature_name="gated")
    await site.gate.entered.wait()
    # The first breaks before any event, the next two during their first events.
    cuts = {0: 0, 1: 400, 2: 900}
    async with breaking(url, cuts.get) as (broken, proxy), AsyncClient(broken) as client:
        seen = []
        async for event in client.watch(job_id):
            seen.append(event["type"])
            site.gate.opened.set()
        assert seen[0] == "SNAPSHOT"
        assert seen[-1] == "JOB_COMPLETE" or proxy.connections > 3
        assert proxy.connections >= 3


async def test_an_unreachable_gateway_is_retried_and_then_reported(url: str, site: Site) -> None:
    async with breaking(url, lambda n: 0 if n < 3 else None) as (broken, proxy):
        async with AsyncClient(broken, patience=0) as hasty:
            with pytest.raises(NoConnection):
                await hasty.list()
        assert proxy.connections == 1
        async with AsyncClient(broken) as patient:
            assert (await patient.list()).data == []


async def test_a_busy_gateway_is_retried(client: AsyncClient, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    accept, refused = site.app.jobs.accept, []

    async def busy(*args: Any, **options: Any) -> Any:
        if len(refused) < 2:
            refused.append(1)
            raise Unavailable("too many writes are pending", retry_after=0.01)
        return await accept(*args, **options)

    monkeypatch.setattr(patience, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(site.app.jobs, "accept", busy)
    job = await client.submit("echo", {"n": 1})
    assert (len(refused), job.receipt.replayed) == (2, False)


async def test_a_wrong_key(make_site: Any) -> None:
    guarded = await make_site(admin_key="secret-secret-secret")
    async with served(guarded.gateway) as port:
        async with AsyncClient(f"http://127.0.0.1:{port}", "wrong") as client:
            with pytest.raises(Unauthorized):
                await client.list()
        async with AsyncClient(f"http://127.0.0.1:{port}", "secret-secret-secret") as client:
            assert (await client.list()).data == []


@pytest.mark.parametrize("body", [b"hello", b'{"jobs": []}', b"data: {}\n\n", b"data: nonsense\n\n"])
async def test_another_server_at_the_address_is_reported(body: bytes) -> None:
    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        kind = b"text/event-stream" if body.startswith(b"data") else b"text/html"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Type: %s\r\n\r\n%s" % (len(body), kind, body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(stranger, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(NotAGateway):
                await client.list()
            with pytest.raises(NotAGateway):
                await client.submit_many([Submission("echo")])
            if body.startswith(b"data"):
                with pytest.raises(NotAGateway):
                    await anext(client.watch(UNKNOWN))


def test_the_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_URL", "http://user:secret@gateway.example:8000/")
    monkeypatch.setenv("FAIRLEAD_API_KEY", "fl_key")
    with Client() as client:
        assert client._http.headers["authorization"] == "Bearer fl_key"
        assert client._address.shown == "http://gateway.example:8000"
    for wrong in ("gateway:8000", "http://", "http://host:port"):
        with pytest.raises(ConfigError):
            Client(wrong)
    with pytest.raises(ConfigError):
        Client(key="schlüssel")


def test_both_clients_have_the_same_methods() -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert calls(Client) == calls(AsyncClient)
    assert calls(fairlead.client.ClientJob) == calls(fairlead.client.AsyncJob)
