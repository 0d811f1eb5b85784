"""With `openai.keep = "nothing"`, no store holds a prompt or an answer after the end of its job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
import redis

from fairlead.app.front_requests import Reading
from fairlead.domain.front_readers import Reader, Readers
from fairlead.engine.loops import erase
from fairlead.errors import WrongState
from tests.integration.openai_site import Front, open_front
from tests.openai_upstream import PATIENCE_S, chat, event, refusing, sending, streaming
from tests.servers import direct

PROMPT, ANSWER = "xylophone-prompt", "xylophone-answer"
MARK = b"xylophone"
ASK = {"model": "llama", "messages": [{"role": "user", "content": PROMPT}], "user": "ada"}
ARTIFACTS = {"threshold": 4096, "max_inline": 4096}
AGAIN = {"x-stainless-retry-count": "1"}
STREAM = (
    event({"choices": [{"index": 0, "delta": {"content": ANSWER}, "finish_reason": "stop"}]}),
    b"data: [DONE]\n\n",
)


@asynccontextmanager
async def keeping_nothing(
    folder: Path, engines: dict[str, str], monkeypatch: pytest.MonkeyPatch, grace: float = 0.0
) -> AsyncIterator[Front]:
    monkeypatch.setattr(erase, "MARGIN_S", 0.2)
    monkeypatch.setattr(erase, "EVERY", 0.1)
    sections: dict[str, Any] = {
        "openai": {"keep": "nothing", "grace": grace},
        "artifacts": {"url": str(folder / "files"), **ARTIFACTS},
    }
    async with open_front(folder, service={"max_attempts": 1}, engines=engines, **sections) as front:
        yield front


async def erased(front: Front, count: int) -> list[Any]:
    """Wait until this many jobs are erased."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            jobs = [await front.app.get(job.job_id) for job in (await front.app.list_jobs()).data]
            if sum(job.input_data == {"kept": "nothing"} for job in jobs) == count:
                return jobs
            await asyncio.sleep(0.05)


async def kept_in(engines: dict[str, str], folder: Path) -> list[str]:
    """Where the marked texts are found: files of SQLite, tables of PostgreSQL, keys of Redis."""
    if "redis_url" not in engines:
        return _files_with_mark(folder)
    found = []
    connection = await asyncpg.connect(direct(engines["database_url"]))
    for (table,) in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'fairlead'"):
        if await connection.fetchval(f"SELECT count(*) FROM fairlead.{table} AS t WHERE t::text LIKE $1", "%xylo%"):
            found.append(table)
    await connection.close()
    with redis.Redis.from_url(engines["redis_url"]) as client:
        found += [key.decode() for key in client.scan_iter() if MARK in key or MARK in _value(client, key)]
    return found


def _files_with_mark(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file() and MARK in path.read_bytes()]


def _value(client: Any, key: bytes) -> bytes:
    return bytes(client.dump(key) or b"")


async def test_nothing_is_kept_after_the_end(
    tmp_path: Path, engines: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with keeping_nothing(tmp_path, engines, monkeypatch) as front:
        answer = chat({"model": "llama"})
        answer["choices"][0]["message"]["content"] = ANSWER
        front.upstream.script.append(sending(str(answer).replace("'", '"').replace("None", "null").encode()))
        front.upstream.script.append(streaming(*STREAM))
        front.upstream.script.append(refusing(500, ANSWER))
        front.upstream.script.append(refusing(400, ANSWER))
        async with front.http() as client:
            first = await client.post("/chat/completions", json=ASK)
            assert first.json()["choices"][0]["message"]["content"] == ANSWER
            streamed = await client.post("/chat/completions", json={**ASK, "stream": True})
            assert ANSWER in streamed.text
            for status in (500, 400):
                failed = await client.post("/chat/completions", json=ASK)
                assert (failed.status_code, ANSWER in failed.text) == (status, True)
            front.upstream.gate.clear()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.post("/chat/completions", json=ASK), 0.5)
        jobs = await erased(front, 5)
        assert {str(job.status) for job in jobs} == {"COMPLETED", "FAILED", "CANCELLED"}
        assert "xylophone" not in repr(jobs)
        usage = [job.context["step_0_llama"]["metrics"]["usage"] for job in jobs if job.job_id == job_id(first)]
        assert usage[0]["total_tokens"] == 16
        output = [each async for each in front.app.output(job_id(streamed))]
        assert len(output) == 1, "only the end"
        async with asyncio.timeout(PATIENCE_S):
            while await kept_in(engines, tmp_path):  # a reader may have kept the write-ahead log from being emptied
                await front.app._runtime.store.ping()
        with pytest.raises(WrongState, match="not kept"):
            await front.app.retry(next(job.job_id for job in jobs if job.status == "FAILED"))
    assert await kept_in(engines, tmp_path) == []
    assert "xylophone" not in caplog.text


async def test_large_requests_and_answers_are_not_kept_in_the_object_store(
    tmp_path: Path, engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def objects() -> list[Path]:
        return [path for path in (tmp_path / "files").rglob("*") if path.is_file() and MARK in path.read_bytes()]

    async with keeping_nothing(tmp_path, engines, monkeypatch, grace=1.0) as front, front.http() as client:
        body = orjson.dumps({"content": ANSWER * 1000})
        front.upstream.script.append(sending(body))
        large = {**ASK, "messages": [{"role": "user", "content": PROMPT * 1000}]}
        answer = await client.post("/chat/completions", json=large)
        assert answer.content == body
        assert len(objects()) == 2
        await erased(front, 1)
        while await front.app.files.sweep(100):
            pass
        assert objects() == []


def job_id(response: Any) -> str:
    return str(response.headers["x-fairlead-job"])


async def test_a_retry_gets_the_answer_until_it_is_erased(
    tmp_path: Path, engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keeping_nothing(tmp_path, engines, monkeypatch, grace=1.0) as front, front.http() as client:
        first = await client.post("/chat/completions", json=ASK)
        joined = await client.post("/chat/completions", json=ASK, headers=AGAIN)
        assert (job_id(joined), joined.json()) == (job_id(first), first.json())
        await erased(front, 1)
        again = await client.post("/chat/completions", json=ASK, headers=AGAIN)
        assert again.status_code == 200
        assert job_id(again) != job_id(first)
        keyed = [await client.post("/chat/completions", json=ASK, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert job_id(keyed[0]) == job_id(keyed[1])
        assert len(front.upstream.calls) == 3


async def test_a_reader_that_comes_too_late_gets_a_clear_error(
    tmp_path: Path, embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of a stream is erased before its reader has taken all of it."""
    async with keeping_nothing(tmp_path, embedded, monkeypatch) as front, front.http() as client:
        first = await client.post("/chat/completions", json=ASK)
        await erased(front, 1)
        monkeypatch.setattr(front.app.fronts, "reading_of", lambda identity, retried: _joined(first))
        late = await client.post("/chat/completions", json=ASK, headers=AGAIN)
        assert late.status_code == 502
        assert "no longer kept" in late.json()["error"]["message"]
        late = await client.post("/chat/completions", json={**ASK, "stream": True}, headers=AGAIN)
        assert late.status_code == 502


async def _joined(first: Any) -> Reading:
    reader = Reader("", "r")
    return Reading(job_id(first), "ada", "openai:aa:1", Readers("b", (reader,)), reader)


async def test_what_was_kept_before_is_erased_too(
    tmp_path: Path, engines: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_front(tmp_path, engines=engines) as front, front.http() as client:
        await client.post("/chat/completions", json=ASK)
    assert await kept_in(engines, tmp_path)
    async with keeping_nothing(tmp_path, engines, monkeypatch) as front:
        await erased(front, 1)
    assert await kept_in(engines, tmp_path) == []
