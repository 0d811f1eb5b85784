"""OpenAI's files and batches, with its unmodified client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from fairlead.app import file_batch_input, file_batch_loop, file_batches
from fairlead.domain import file_batch
from fairlead.domain.job import JobStatus
from fairlead.store.file_batches import ChangeFileBatch
from fairlead.store.port import Done
from fairlead.store.writes import PruneBatches
from tests.integration.openai_batches import CHAT, NO_JSON, create, ended, line, lines_of, upload
from tests.integration.openai_site import ADMIN, HELLO, Front, open_front, second_gateway
from tests.openai_upstream import PATIENCE_S, WORDS, refusing, sending


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    async with open_front(tmp_path) as front:
        yield front


async def test_a_batch_is_uploaded_run_and_downloaded(
    tmp_path: Path, engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_batch_loop, "PART_LINES", 4)
    content = b"\xef\xbb\xbf" + b"\n".join(line(f"q{number}") for number in range(10))
    where = {"url": str(tmp_path / "files")}
    async with open_front(tmp_path, engines=engines, artifacts=where) as front, front.client() as client:
        front.upstream.script += [refusing(400, "no such tool")]
        made = await create(client, content, metadata={"run": "7"})
        assert (made.status, made.request_counts and made.request_counts.total) == ("validating", 0)
        batch = await ended(client, made.id)
        assert batch.status == "completed", batch
        assert batch.request_counts is not None
        assert batch.usage is not None
        assert batch.request_counts.model_dump() == {"total": 10, "completed": 9, "failed": 1}
        assert (batch.usage.input_tokens, batch.usage.total_tokens) == (81, 144)
        assert batch.metadata == {"run": "7"}
        assert batch.expires_at == batch.created_at + 86400
        output, errors = await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
        assert sorted([*output, *errors]) == [f"q{number}" for number in range(10)]
        for each in output.values():
            assert each["response"]["body"]["choices"][0]["message"]["content"] == "".join(WORDS)
            assert (each["response"]["status_code"], each["error"]) == (200, None)
        (failed,) = errors.values()
        assert (failed["response"]["status_code"], failed["error"]) == (400, None)
        parts = (await front.app.list_batches()).data
        assert sorted(part.total for part in parts) == [2, 4, 4]
        assert [each.id for each in (await client.batches.list()).data] == [batch.id]
        jobs = (await front.app.list_jobs()).data
        assert {(job.priority, job.queued_at) for job in jobs} == {("low", None)}


@pytest.mark.parametrize(
    ("content", "errors"),
    [
        (b"\n \n", [("empty_file", None)]),
        (line("a") + NO_JSON + b"[]\n", [("invalid_json_line", 2), ("invalid_json_line", 3)]),
        (line("a") + line("b").replace(b'"Hello"', b"[" * 300 + b"]" * 300), [("invalid_json_line", 2)]),
        (line("a") + line("\ud800", body={"seed": 10**20}), [("invalid_json_line", 2)]),
        (line("a") + b"\n" + line("a"), [("duplicate_custom_id", 3)]),
        (line(...) + line(7), [("missing_required_parameter", 1), ("invalid_custom_id", 2)]),
        (line("a", method="GET") + line("b", url="/v1/embeddings"), [("invalid_method", 1), ("url_mismatch", 2)]),
        (line("a") + line("b", body={"model": "gpt"}), [("mismatched_model", 2)]),
        (line("a", body={"model": "gpt"}) + line("b"), [("model_not_found", 1)]),
        (line("a", body={"stream": True}), [("unsupported_parameter", 1)]),
        (line("a", body={"service_tier": "gold"}), [("invalid_value", 1)]),
        (line("a") + line("b", "x" * 2000000), [("too_large", 2)]),
        (line("a") + line("b", "x" * 3000000) + line("a"), [("line_too_long", 2)]),
    ],
)
async def test_a_file_with_a_bad_line_fails_as_a_whole(
    front: Front, content: bytes, errors: list[tuple[str, int | None]]
) -> None:
    async with front.client() as client:
        batch = await ended(client, (await create(client, content)).id)
        assert batch.status == "failed"
        assert batch.failed_at is not None
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(error.code, error.line) for error in batch.errors.data] == errors
        assert (await front.app.list_jobs()).data == []
        await client.files.delete(batch.input_file_id)  # nothing uses it any more


async def test_too_many_lines_fail(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_batch_input, "MOST_LINES", 3)
    async with front.client() as client:
        batch = await ended(client, (await create(client, b"".join(map(line, "abcde")))).id)
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(error.code, error.line) for error in batch.errors.data] == [("too_many_lines", 4)]


async def test_the_file_of_a_batch_can_be_listed_and_read_but_not_deleted(front: Front) -> None:
    async with front.client() as client:
        front.upstream.gate.clear()
        batch = await create(client, line("a"), "1h")
        await front.upstream.reaches(open=1)
        ids = [batch.input_file_id, await upload(client, line("b"))]
        other = await client.files.create(
            file=b"x", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert other.expires_at == other.created_at + 3600
        assert [each.id async for each in client.files.list(limit=1, order="asc")] == [*ids, other.id]
        assert [each.id async for each in client.files.list(limit=2, purpose="batch")] == ids[::-1]
        assert (await client.files.retrieve(ids[0])).bytes == len(line("a"))
        assert (await client.files.content(ids[0])).content == line("a")
        with pytest.raises(openai.ConflictError):
            await client.files.delete(ids[0])
        assert (await client.files.delete(ids[1])).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(ids[1])
        front.upstream.gate.set()
        output = (await ended(client, batch.id)).output_file_id
        assert output is not None
        assert (await client.files.retrieve(output)).purpose == "batch_output"
        assert (await client.files.delete(ids[0])).deleted


async def test_a_cancelled_batch_has_the_results_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_batch_loop, "PART_LINES", 2)
    monkeypatch.setattr(file_batch_loop, "MOST_QUEUED", 2)
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        batch = await create(client, b"".join(map(line, "abcdef")))
        await front.upstream.reaches(calls=1)
        front.upstream.gate.clear()
        await front.upstream.reaches(open=1)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        batch = await ended(client, batch.id)
        assert batch.status == "cancelled"
        assert batch.cancelled_at is not None
        output, errors = await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
        assert sorted([*output, *errors]) == list("abcdef")
        assert output
        assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)
        await front.upstream.reaches(open=0)


async def test_lines_that_do_not_end_in_their_window_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_batch, "WINDOWS", {"15m": 3.0})
    monkeypatch.setattr(file_batch_loop, "PART_LINES", 2)
    monkeypatch.setattr(file_batch_loop, "MOST_QUEUED", 2)
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        batch = await create(client, b"".join(map(line, "abcdef")), "15m")
        await front.upstream.reaches(calls=1)
        front.upstream.gate.clear()
        batch = await ended(client, batch.id)
        assert batch.status == "expired"
        assert batch.expired_at is not None
        output, errors = await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
        assert sorted([*output, *errors]) == list("abcdef")
        assert output
        assert {each["error"]["code"] for each in errors.values()} == {"batch_expired"}


async def test_a_batch_waits_for_everybody_else(tmp_path: Path) -> None:
    """Requests that come later than a batch wait for the calls that are running, and for no other line of it."""
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client() as client:
        front.upstream.gate.clear()
        batch = await create(client, b"".join(line(str(number), "batch") for number in range(20)))
        await front.upstream.reaches(open=1)
        asked = [
            asyncio.create_task(client.chat.completions.create(model="llama", messages=HELLO, user=f"u{number}"))
            for number in range(5)
        ]
        async with asyncio.timeout(PATIENCE_S):
            while len((await front.app.list_jobs(status=JobStatus.PENDING, limit=100)).data) < 24:
                await asyncio.sleep(0.02)
        front.upstream.gate.set()
        await asyncio.gather(*asked)
        texts = [call.json["messages"][0]["content"] for call in front.upstream.calls]
        assert texts[:6] == ["batch", *["Hello"] * 5]
        assert (await ended(client, batch.id)).status == "completed"


async def test_the_batches_of_two_users_alternate(tmp_path: Path) -> None:
    async with (
        open_front(tmp_path, service={"limit": 1, "charge": "tokens"}) as front,
        front.client(default_headers={"X-Fairlead-User": "ada"}) as ada,
        front.client(default_headers={"X-Fairlead-User": "bob"}) as bob,
    ):
        front.upstream.gate.clear()
        first = await create(ada, b"".join(line(str(number), "ada") for number in range(12)))
        await front.upstream.reaches(open=1)
        second = await create(bob, b"".join(line(str(number), "bob") for number in range(6)))
        await ended(bob, second.id, "in_progress")
        async with asyncio.timeout(PATIENCE_S):
            while len((await front.app.list_jobs(status=JobStatus.PENDING, limit=100)).data) < 17:
                await asyncio.sleep(0.02)
        front.upstream.gate.set()
        await asyncio.gather(ended(ada, first.id), ended(bob, second.id))
        texts = [call.json["messages"][0]["content"] for call in front.upstream.calls]
        assert texts[1:13].count("bob") == 6, texts


async def test_files_and_batches_belong_to_their_user(tmp_path: Path) -> None:
    async with open_front(tmp_path, admin_key=ADMIN) as front:
        keys = {user: (await front.app.create_key("user", user_id=user)).text for user in ("ada", "bob")}
        async with (
            front.client(keys["ada"]) as ada,
            front.client(keys["bob"]) as bob,
            front.client(ADMIN, default_headers={"X-Fairlead-User": "bob"}) as for_bob,
        ):
            batch = await create(ada, line("a"))
            assert batch.id == (await ended(ada, batch.id)).id
            for client in (bob, for_bob):
                calls: list[Any] = [
                    client.files.retrieve(batch.input_file_id),
                    client.files.content(batch.input_file_id),
                    client.files.delete(batch.input_file_id),
                    client.batches.retrieve(batch.id),
                    client.batches.cancel(batch.id),
                ]
                for call in calls:
                    with pytest.raises(openai.NotFoundError):
                        await call
                with pytest.raises(openai.UnprocessableEntityError):
                    await client.batches.create(
                        input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
                    )
                assert (await client.files.list()).data == (await client.batches.list()).data == []
            own = await create(for_bob, line("b"))
            assert [each.id for each in (await bob.batches.list()).data] == [own.id]
            assert {job.user_id for job in (await front.app.list_jobs()).data} <= {"ada", "bob"}
            await ended(bob, own.id)


async def test_a_retry_of_the_client_gets_the_batch_of_the_first_request(front: Front) -> None:
    async with front.client() as client, front.http() as http:
        body = {"input_file_id": await upload(client, line("a")), "endpoint": CHAT, "completion_window": "24h"}
        first, other = [(await http.post("/batches", json=body)).json()["id"] for _ in range(2)]
        again = await http.post("/batches", json=body, headers={"x-stainless-retry-count": "1"})
        assert first != other == again.json()["id"]
        keyed = [http.post("/batches", json=body, headers={"Idempotency-Key": "k"}) for _ in range(4)]
        assert len({answer.json()["id"] for answer in await asyncio.gather(*keyed)}) == 1


async def test_two_gateways_that_get_one_key_at_the_same_moment_make_one_batch(
    tmp_path: Path, distributed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_looked = asyncio.Barrier(2)
    look = file_batches.FileBatches._known

    async def look_together(*arguments: Any) -> Any:
        found = await look(*arguments)
        await both_have_looked.wait()
        return found

    where = {"url": str(tmp_path / "files")}
    async with (
        open_front(tmp_path, engines=distributed, artifacts=where) as front,
        second_gateway(front) as other,
        front.client() as client,
        front.http(headers={"Idempotency-Key": "k"}) as here,
        other.http(headers={"Idempotency-Key": "k"}) as there,
    ):
        body = {"input_file_id": await upload(client, line("a")), "endpoint": CHAT, "completion_window": "24h"}
        with monkeypatch.context() as patches:
            patches.setattr(file_batches.FileBatches, "_known", look_together)
            answers = await asyncio.gather(here.post("/batches", json=body), there.post("/batches", json=body))
        (made,) = {answer.json()["id"] for answer in answers}
        assert [each.id for each in (await client.batches.list()).data] == [made]
        refused = await there.post("/batches", json=body | {"completion_window": "1h"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_mismatch")
        assert (await ended(client, made)).status == "completed"
        assert (await there.post("/batches", json=body)).json()["id"] == made


async def test_a_user_cannot_have_more_open_batches_than_allowed(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_batches, "MOST_OPEN", 2)
    front.upstream.gate.clear()
    async with front.client() as client:
        await create(client, line("a"))
        await ended(client, (await create(client, NO_JSON)).id)
        await create(client, line("b"))
        with pytest.raises(openai.RateLimitError):
            await create(client, line("c"))
    front.upstream.gate.set()


async def test_the_images_of_a_batch_are_in_its_output(front: Front) -> None:
    """Their files end with the jobs, which may be before the output is read."""
    path: Any = "/v1/images/generations"
    content = line("a", url=path, body={"prompt": "a cat", "response_format": "url"})
    async with front.client() as client:
        made = await client.batches.create(
            input_file_id=await upload(client, content), endpoint=path, completion_window="24h"
        )
        output = await lines_of(client, (await ended(client, made.id)).output_file_id)
        (image,) = output["a"]["response"]["body"]["data"]
        assert image == {"b64_json": "cG5n"}


async def test_counts_of_tokens_that_cannot_be_stored_are_ignored(front: Front) -> None:
    odd = sending(json.dumps({"choices": [], "usage": {"prompt_tokens": 2**63, "completion_tokens": 5}}).encode())
    front.upstream.script += [odd, odd, odd]
    async with front.client() as client:
        batch = await ended(client, (await create(client, b"".join(map(line, "abc")))).id)
        assert batch.usage is not None
        assert (batch.usage.input_tokens, batch.usage.output_tokens) == (0, 15)


async def test_the_answer_says_whether_the_batch_fits_its_window(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    async with front.client() as client:
        batch = await create(client, line("a"))
        assert batch.model_extra is not None
        assert batch.model_extra["fairlead"] == {"expected_at": None, "fits_window": None}
        await ended(client, batch.id)
        for window, fits in ((86400.0, True), (1e-9, False)):
            monkeypatch.setattr(file_batch, "WINDOWS", {"24h": window})
            batch = await create(client, line("a") * 1000)
            assert batch.model_extra is not None
            expected = batch.model_extra["fairlead"]
            assert expected["expected_at"] >= batch.created_at
            assert expected["fits_window"] is fits


async def test_a_leader_that_was_paused_changes_nothing(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is changed by another leader between two commits of this one: after a part, and after the files."""
    monkeypatch.setattr(file_batch_loop, "PART_LINES", 2)
    store, group_commit = front.app._runtime.store, front.app._runtime.group_commit
    points: list[str] = []
    writing = group_commit.write_all

    async def write_all(transitions: Any) -> Any:
        if isinstance(transitions[-1], ChangeFileBatch) and "files" not in points:
            points.append("files")
            found = await store.get_file_batch(transitions[-1].batch.id)
            assert found is not None
            assert isinstance(await group_commit.write(ChangeFileBatch(replace(found, failed=0))), Done)
        return await writing(transitions)

    submit = file_batch_loop.FileBatchLoop._submit

    async def late(self: Any, batch: Any, progress: Any) -> Any:
        submitted = await submit(self, batch, progress)
        if batch.parts == 1 and "part" not in points:
            points.append("part")
            assert isinstance(await group_commit.write(ChangeFileBatch(replace(batch, failed=0))), Done)
        return submitted

    monkeypatch.setattr(group_commit, "write_all", write_all)
    monkeypatch.setattr(file_batch_loop.FileBatchLoop, "_submit", late)
    async with front.client() as client:
        batch = await ended(client, (await create(client, b"".join(map(line, "abcdef")))).id)
        assert points == ["part", "files"]
        assert sorted(await lines_of(client, batch.output_file_id)) == list("abcdef")
        assert len(front.upstream.calls) == 6
        assert [each.id async for each in client.files.list()] == [batch.output_file_id, batch.input_file_id]


async def test_a_batch_ends_though_retention_has_removed_a_part(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_batch_loop, "PART_LINES", 2)
    finish, group_commit = file_batch_loop.FileBatchLoop._finish, front.app._runtime.group_commit
    removed: list[Any] = []

    async def late(self: Any, batch: Any, progress: Any) -> bool:
        if not removed:
            for part in progress.parts:
                await front.app.get_batch(part)  # notes when it has ended
            removed.append(await group_commit.write(PruneBatches(front.app.now() + 60, 1)))
        return await finish(self, batch, file_batch_loop._Progress([], {}))  # as after a restart

    monkeypatch.setattr(file_batch_loop.FileBatchLoop, "_finish", late)
    async with front.client() as client:
        batch = await ended(client, (await create(client, b"".join(map(line, "abcdef")))).id)
        assert removed == [Done(1)]
        assert batch.status == "completed"
        assert len(await lines_of(client, batch.output_file_id)) == 4
        await client.files.delete(batch.input_file_id)


async def test_a_batch_that_cannot_be_moved_on_does_not_hold_up_others(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = file_batch_loop.FileBatchLoop._run
    broken: list[str] = []

    async def fail(self: Any, batch: Any, progress: Any) -> bool:
        if not broken:
            broken.append(batch.id)
        if batch.id == broken[0]:
            raise RuntimeError("broken")
        return await run(self, batch, progress)

    monkeypatch.setattr(file_batch_loop.FileBatchLoop, "_run", fail)
    async with front.client() as client:
        first = await create(client, line("a"))
        assert (await ended(client, (await create(client, line("b"))).id)).status == "completed"
        assert (await client.batches.retrieve(first.id)).status == "in_progress"
