"""A request that a client sends again joins its job; a job without a reader is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from fairlead import Submission
from fairlead.dispatch.output_log import PAGE
from fairlead.domain.front_readers import Reader, Readers
from fairlead.domain.job import JobStatus
from fairlead.domain.output import Entry
from fairlead.domain.usage import Usage
from fairlead.engine.spent_calls import StreamedUsage, streamed_usage
from fairlead.errors import Unavailable
from fairlead.store.port import ChangeReader
from tests.integration.openai_site import PROMPT, Front, disconnect_after, open_front, second_gateway
from tests.openai_upstream import PATIENCE_S, WORDS, refusing

ASK = {"model": "llama", "messages": [{"role": "user", "content": "Hello"}], "user": "ada"}
AGAIN = {"x-stainless-retry-count": "1"}


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(tmp_path) as front:
        yield front


async def ask(front: Front, body: Any = ASK, **headers: str) -> httpx2.Response:
    async with front.http() as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.post("/chat/completions", json=body, headers=named)


def job_of(response: httpx2.Response) -> str:
    return str(response.headers["x-fairlead-job"])


async def readers(front: Front) -> list[tuple[str, str]]:
    return await front.app._runtime.store.front_readers(10)


async def joined(front: Front, before: list[tuple[str, str]]) -> None:
    """Wait until another request reads the job."""
    async with asyncio.timeout(PATIENCE_S):
        while await readers(front) == before:
            await asyncio.sleep(0.01)


async def ask_twice(front: Front, body: Any = ASK) -> tuple[asyncio.Task[httpx2.Response], ...]:
    """A request, and one that has joined its job."""
    first = asyncio.create_task(ask(front, body))
    await front.upstream.reaches(open=1)
    before = await readers(front)
    again = asyncio.create_task(ask(front, body, **AGAIN))
    await joined(front, before)
    return first, again


async def test_equal_requests_are_separate_jobs(front: Front) -> None:
    first, second = await ask(front), await ask(front)
    assert job_of(first) != job_of(second)
    assert len(front.upstream.calls) == 2


async def test_a_retry_gets_the_answer_of_the_job_that_has_ended(front: Front) -> None:
    first, again = await ask(front), await ask(front, **AGAIN)
    assert job_of(again) == job_of(first)
    assert again.json() == first.json()
    assert len(front.upstream.calls) == 1


@pytest.mark.parametrize("status", [408, 409])
@pytest.mark.parametrize("headers", [AGAIN, {"Idempotency_Key": "k"}])
async def test_a_retry_after_an_answer_that_clients_retry_is_a_new_job(
    front: Front, status: int, headers: dict[str, str]
) -> None:
    front.upstream.script.append(refusing(status))
    first, again = await ask(front, **headers), await ask(front, **headers)
    assert (first.status_code, again.status_code) == (status, 200)
    assert job_of(again) != job_of(first)
    assert job_of(await ask(front, **headers)) == job_of(again)
    assert len(front.upstream.calls) == 2


async def test_a_retry_with_another_body_or_user_is_a_new_job(front: Front) -> None:
    first = await ask(front)
    for body in ({**ASK, "seed": 1}, {**ASK, "user": "bob"}):
        assert job_of(await ask(front, body, **AGAIN)) != job_of(first)


async def test_a_retry_with_another_query_is_a_new_job(front: Front) -> None:
    async with front.http() as client:
        answers = [
            await client.post(f"/chat/completions{query}", json=ASK, headers=AGAIN)
            for query in ("?api-version=1", "?api-version=2", "?api-version=1")
        ]
    jobs = [job_of(answer) for answer in answers]
    assert jobs[0] != jobs[1]
    assert jobs[2] == jobs[0]
    assert [call.query for call in front.upstream.calls] == ["api-version=1", "api-version=2"]


async def test_a_retry_joins_although_its_form_has_another_boundary(front: Front) -> None:
    jobs = []
    async with front.http() as client:
        for boundary in ("aa", "bb"):
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="model"\r\n\r\nllama\r\n--{boundary}--\r\n'
            headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Idempotency-Key": "k"}
            jobs.append(job_of(await client.post("/audio/transcriptions", content=head, headers=headers)))
    assert jobs[0] == jobs[1]
    assert len(front.upstream.calls) == 1


async def test_a_retry_joins_a_running_job_which_survives_the_first_client(front: Front) -> None:
    front.upstream.gate.clear()
    first = asyncio.create_task(ask(front))
    await front.upstream.reaches(open=1)
    before = await readers(front)
    again = asyncio.create_task(ask(front, **AGAIN))
    [job] = (await front.app.list_jobs(user_id="ada")).data
    await joined(front, before)
    first.cancel()
    await asyncio.wait([first])
    front.upstream.gate.set()
    answer = await again
    assert job_of(answer) == job.job_id
    assert answer.status_code == 200
    assert len(front.upstream.calls) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_joined_and_disconnects_leaves_the_job_to_the_first(front: Front, stream: bool) -> None:
    body = {**ASK, "stream": stream}
    front.upstream.gate.clear()
    first, again = await ask_twice(front, body)
    before = await readers(front)
    again.cancel()
    await joined(front, before)
    front.upstream.gate.set()
    answer = await first
    assert answer.status_code == 200
    assert "error" not in answer.text
    assert len(front.upstream.calls) == 1


async def test_the_last_request_that_disconnects_cancels_the_job(front: Front) -> None:
    front.upstream.gate.clear()
    first, again = await ask_twice(front)
    before = await readers(front)
    again.cancel()
    await joined(front, before)
    assert front.upstream.open == 1
    first.cancel()
    await front.upstream.reaches(open=0)


async def test_a_stream_that_is_refused_does_not_keep_the_job_running(tmp_path: Path) -> None:
    async with open_front(tmp_path, server={"max_output_readers": 1}) as front:
        front.upstream.gate.clear()
        body = {**ASK, "stream": True}
        first = asyncio.create_task(ask(front, body))
        await front.upstream.reaches(open=1)
        before = await readers(front)
        refused = await ask(front, body, **AGAIN)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_readers")
        assert await readers(front) == before
        assert front.upstream.open == 1
        first.cancel()
        await front.upstream.reaches(open=0)


async def test_requests_that_disconnect_together_cancel_the_job(front: Front) -> None:
    front.upstream.gate.clear()
    for task in await ask_twice(front):
        task.cancel()
    await front.upstream.reaches(open=0)


async def test_a_cancellation_that_fails_is_tried_again(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = front.app.jobs.cancel
    failures = [Unavailable("the database is away")] * 2

    async def failing(job_id: str, **known: Any) -> Any:
        if failures:
            raise failures.pop()
        return await cancel(job_id, **known)

    monkeypatch.setattr(front.app.jobs, "cancel", failing)
    monkeypatch.setattr("fairlead.app.front_requests.PAUSES_S", (0.01, 0.01), raising=False)
    front.upstream.gate.clear()
    first = asyncio.create_task(ask(front))
    await front.upstream.reaches(open=1)
    first.cancel()
    await front.upstream.reaches(open=0)


async def test_a_retry_after_a_cancelled_job_is_a_new_job(front: Front) -> None:
    front.upstream.gate.clear()
    first = asyncio.create_task(ask(front))
    await front.upstream.reaches(open=1)
    first.cancel()
    await front.upstream.reaches(open=0)
    front.upstream.gate.set()
    assert (await ask(front, **AGAIN)).status_code == 200
    assert len(front.upstream.calls) == 2


async def test_requests_with_one_idempotency_key_share_a_job(front: Front) -> None:
    answers = await asyncio.gather(*(ask(front, Idempotency_Key="k1") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({job_of(answer) for answer in answers}) == 1
    assert len(front.upstream.calls) == 1


@pytest.mark.parametrize("leaves", [False, True])
async def test_requests_with_one_idempotency_key_share_a_job_whenever_they_come(
    front: Front, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """One is accepted, and may leave, after another has found no job to join, and before it submits its own."""
    looked, go_on = asyncio.Event(), asyncio.Event()
    service_for = front.app.models.service_for

    async def late(model: str | None) -> str:
        if not looked.is_set():
            looked.set()
            await go_on.wait()
        return await service_for(model)

    monkeypatch.setattr(front.app.models, "service_for", late)
    slow = asyncio.create_task(ask(front, Idempotency_Key="k1"))
    await looked.wait()
    if leaves:
        front.upstream.gate.clear()
    fast = asyncio.create_task(ask(front, Idempotency_Key="k1"))
    if leaves:
        await front.upstream.reaches(open=1)
        fast.cancel()
        await front.upstream.reaches(open=0)
        front.upstream.gate.set()
    await asyncio.wait({fast})
    go_on.set()
    assert (await slow).status_code == 200
    assert leaves or job_of(await slow) == job_of(await fast)
    assert len(front.upstream.calls) == 1 + leaves


async def test_a_request_goes_on_if_another_one_that_joined_its_job_leaves(front: Front) -> None:
    front.upstream.gate.clear()
    first = asyncio.create_task(ask(front, Idempotency_Key="k1"))
    await front.upstream.reaches(open=1)
    before = await readers(front)
    second = asyncio.create_task(ask(front, Idempotency_Key="k1"))
    await joined(front, before)
    second.cancel()
    async with asyncio.timeout(PATIENCE_S):
        while await readers(front) != before and not first.done():
            await asyncio.sleep(0.01)
    front.upstream.gate.set()
    assert (await first).status_code == 200
    assert len(front.upstream.calls) == 1


async def test_an_idempotency_key_with_another_body_is_refused(front: Front) -> None:
    await ask(front, Idempotency_Key="k1")
    other = await ask(front, {**ASK, "seed": 1}, Idempotency_Key="k1")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_mismatch")


async def test_an_idempotency_key_of_a_cancelled_job_can_be_used_again(front: Front) -> None:
    front.upstream.gate.clear()
    first = asyncio.create_task(ask(front, Idempotency_Key="k1"))
    await front.upstream.reaches(open=1)
    first.cancel()
    await front.upstream.reaches(open=0)
    front.upstream.gate.set()
    second, third = await ask(front, Idempotency_Key="k1"), await ask(front, Idempotency_Key="k1")
    assert second.status_code == 200
    assert job_of(third) == job_of(second)


async def test_an_error_that_came_after_white_space_reaches_the_client_by_its_retry(tmp_path: Path) -> None:
    async with open_front(tmp_path, openai={"keepalive_after": 0.05}, service={"max_attempts": 1}) as front:

        async def slow(*arguments: Any) -> Any:
            await front.upstream.gate.wait()
            return await refusing(500, "out of memory")(*arguments)

        front.upstream.script.append(slow)
        front.upstream.gate.clear()
        async with front.client(max_retries=1) as client:
            asked = asyncio.create_task(client.chat.completions.create(**ASK))  # type: ignore[call-overload]
            await front.upstream.reaches(open=1)
            await asyncio.sleep(0.2)
            front.upstream.gate.set()
            with pytest.raises(Exception, match="out of memory") as caught:
                await asked
        assert getattr(caught.value, "status_code", None) == 500
        assert len(front.upstream.calls) == 1


async def test_a_job_whose_gateway_is_gone_is_cancelled_after_the_grace_time(tmp_path: Path) -> None:
    async with open_front(tmp_path, openai={"grace": 0.1}, service={"limit": 1}) as front:
        front.upstream.gate.clear()
        request = {"path": "chat/completions", "content_type": "application/json", "body": "{}"}
        [receipt] = await front.app.accept(
            [Submission("llama", request, "ada")], idempotency_key="openai:aa:1", body_hash="b@dead:1:0/r"
        )
        job = await front.app.wait(receipt.job_id, 20)
        assert job.status is JobStatus.CANCELLED
        await front.upstream.reaches(open=0)


async def test_the_gateway_of_a_client_that_disconnects_counts_the_tokens_that_came(
    tmp_path: Path, distributed: dict[str, str]
) -> None:
    """The call runs in another process, so the gateway counts the events in the output log."""
    async with open_front(tmp_path, engines=distributed) as first, second_gateway(first) as second:
        first.upstream.gate.clear()
        async with second.client() as client:
            await disconnect_after(client, "".join(WORDS[:2]))
            await first.upstream.reaches(open=0)
        await counts_two_tokens(first)


async def test_a_job_whose_gateway_is_gone_counts_the_tokens_that_came(
    tmp_path: Path, distributed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_front(tmp_path, engines=distributed, openai={"grace": 0.1}) as first:
        first.upstream.gate.clear()
        async with second_gateway(first) as second, second.client() as client:
            monkeypatch.setattr(second.app.fronts, "leave", died)
            await disconnect_after(client, "".join(WORDS[:2]))
        await first.upstream.reaches(open=0)
        await counts_two_tokens(first)


async def test_a_job_that_another_process_cancels_counts_the_tokens_that_came(
    tmp_path: Path, distributed: dict[str, str]
) -> None:
    async with open_front(tmp_path, engines=distributed) as first, second_gateway(first) as second:
        first.upstream.gate.clear()
        async with second.client() as client:
            stream = await client.chat.completions.create(**ASK, stream=True)  # type: ignore[call-overload]
            [await anext(stream) for _ in WORDS[:2]]
            [job] = (await first.app.list_jobs(user_id="ada")).data
            await second.app.cancel(job.job_id)
        await counts_two_tokens(first)


async def test_a_batch_that_another_process_cancels_counts_the_tokens_that_came(
    tmp_path: Path, distributed: dict[str, str]
) -> None:
    body = orjson.dumps({**ASK, "stream": True}).decode()
    request = {"path": "chat/completions", "content_type": "application/json", "body": body}
    async with open_front(tmp_path, engines=distributed) as first, second_gateway(first) as second:
        first.upstream.gate.clear()
        batch = await second.app.submit_batch([{"feature_name": "llama", "input_data": request}], user_id="ada")
        [job] = (await first.app.list_jobs(user_id="ada")).data
        async with contextlib.aclosing(second.app.output(job.job_id)) as output:
            while WORDS[1] not in str(await anext(output)):
                pass
        await second.app.batches.cancel(batch.id)
        await counts_two_tokens(first)


async def counts_two_tokens(front: Front) -> None:
    [row] = (await front.app.usage(group_by="user,model,outcome", interval="total")).data
    assert row.groups == {"user": "ada", "model": "llama", "outcome": "cancelled"}
    assert (row.calls, row.tokens_in, row.tokens_out) == (1, PROMPT, 2)


async def died(reading: Any) -> None:
    """In place of `FrontRequests.leave`, as if the gateway had died."""


async def test_other_requests_go_on_while_the_tokens_of_a_long_stream_are_counted(front: Front) -> None:
    event = orjson.dumps('data: {"model":"llama","choices":[{"delta":{"content":"a"}}]}\n\n').decode()
    entries = [Entry("a", run, 0, 1, number, [event]) for run in (1, 2) for number in range(3 * PAGE)]
    runtime = front.app._runtime
    await runtime.output_log.append(entries)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    counted = await streamed_usage("a", runtime.output_log, runtime.store, None)
    running.cancel()
    assert counted == StreamedUsage(2, Usage(tokens_out=3 * PAGE, model="llama"))
    assert turns >= 3


async def test_a_job_with_readers_at_two_gateways_goes_on_until_the_last_one_leaves(
    tmp_path: Path, distributed: dict[str, str]
) -> None:
    async with open_front(tmp_path, engines=distributed) as first, second_gateway(first) as second:
        first.upstream.gate.clear()
        older = asyncio.create_task(ask(first, Idempotency_Key="k1"))
        await first.upstream.reaches(open=1)
        alone = await readers(first)
        for newer in (second, first):
            joining = asyncio.create_task(ask(newer, Idempotency_Key="k1"))
            await joined(first, alone)
            joining.cancel()
            async with asyncio.timeout(PATIENCE_S):
                while await readers(first) != alone:
                    await asyncio.sleep(0.01)
        newest = asyncio.create_task(ask(second, Idempotency_Key="k1"))
        await joined(first, alone)
        older.cancel()
        async with asyncio.timeout(PATIENCE_S):
            while len(Readers.of((await readers(first))[0][1]).requests) == 2:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        first.upstream.gate.set()
        answer = await newest
        assert answer.status_code == 200
        assert len(first.upstream.calls) == 1
        first.upstream.gate.clear()
        last = [asyncio.create_task(ask(gateway, Idempotency_Key="k2")) for gateway in (first, second)]
        await first.upstream.reaches(open=1)
        for request in last:
            request.cancel()
        await first.upstream.reaches(open=0)


async def test_readers_of_gateways_that_are_gone_do_not_keep_a_job_running(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front:
        front.upstream.gate.clear()
        first = asyncio.create_task(ask(front, Idempotency_Key="k1"))
        await front.upstream.reaches(open=1)
        [(_, text)] = await readers(front)
        known = Readers.of(text)
        assert known is not None
        dead = Readers(known.body, (Reader("dead:1:0", "r"), *known.requests))
        key, *_ = await front.app._runtime.store.newest_submit("ada", "openai:") or ("",)
        await front.app._runtime.group_commit.write(ChangeReader("ada", key, text, str(dead)))
        first.cancel()
        await front.upstream.reaches(open=0)


async def test_dead_requests_are_requeued_only_if_they_are_named(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"max_attempts": 1}) as front:
        front.upstream.script.append(refusing(500))
        job_id = job_of(await ask(front))
        assert await front.app.requeue(all=True) == 0
        assert (await front.app.preview_requeue(all=True)).skipped == 1
        async with httpx2.AsyncClient(base_url=front.base, timeout=20) as client:
            answer = await client.post("/admin/queue-dead/requeue", json={"all": True})
        assert answer.json() == {"requeued": 0, "skipped": 1, "dry_run": False}
        assert await front.app.requeue(user_id="ada") == 0
        assert len(front.upstream.calls) == 1
        assert await front.app.requeue(service="llama", dry_run=True) == 1
        assert await front.app.requeue(job_ids=[job_id]) == 1
        assert (await front.app.wait(job_id, 20)).status is JobStatus.COMPLETED
