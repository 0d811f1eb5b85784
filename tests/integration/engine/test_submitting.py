"""What is accepted, what is refused, and what lists show."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import (
    Call,
    Fairlead,
    JobStatus,
    Submission,
    WrongState,
)
from fairlead.errors import InvalidInput, NotFound, UnknownFeature
from tests.integration.engine.waiting import ended


async def test_a_repeated_idempotency_key_returns_the_first_job(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app.running():
        first = await app.submit("one", {"a": 1}, user_id="ada", idempotency_key="k")
        again = await app.submit("one", {"a": 1}, user_id="ada", idempotency_key="k")
        assert first.id == again.id
        other = await app.submit("one", {"a": 1}, user_id="bob", idempotency_key="k")
        assert other.id != first.id, "keys are per user"
        with pytest.raises(InvalidInput):
            await app.submit("one", {"a": 2}, user_id="ada", idempotency_key="k")
        many = [Submission("one", {"n": n}, "ada") for n in range(3)]
        jobs = await app.submit_many(many, idempotency_key="bulk")
        assert [job.id for job in await app.submit_many(many, idempotency_key="bulk")] == [job.id for job in jobs]


async def test_a_bulk_submit_is_all_or_nothing(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        with pytest.raises(InvalidInput) as caught:
            await app.submit_many([Submission("one"), Submission("one", priority="urgent"), Submission("one")])
        assert caught.value.details["index"] == 1
        assert (await app.list_jobs()).data == []


async def test_bad_submissions_get_a_typed_error_and_store_nothing(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    bad: list[tuple[dict[str, Any], str]] = [
        ({"feature_name": "nope"}, "/feature_name"),
        ({"feature_name": ""}, "/feature_name"),
        ({"feature_name": 7}, "/feature_name"),
        ({"user_id": ""}, "/user_id"),
        ({"user_id": "x" * 1024}, "/user_id"),
        ({"user_id": "a\nb"}, "/user_id"),
        ({"user_id": "a\u2028b"}, "/user_id"),
        ({"user_id": 42.0}, "/user_id"),
        ({"user_id": True}, "/user_id"),
        ({"priority": "urgent"}, "/priority"),
        ({"delay": -1}, "/delay"),
        ({"delay": 1e12}, "/delay"),
        ({"delay": float("nan")}, "/delay"),
        ({"delay": True}, "/delay"),
        ({"scheduled_at": "tomorrow"}, "/scheduled_at"),
        ({"scheduled_at": "9999-01-01T00:00:00Z"}, "/scheduled_at"),
        ({"delay": 5, "scheduled_at": "2030-01-01T00:00:00Z"}, "/delay"),
        ({"deadline": "2001-01-01T00:00:00Z"}, "/deadline"),
        ({"deadline": 5, "delay": 10}, "/deadline"),
        ({"deadline": 0}, "/deadline"),
        ({"cost": 0}, "/cost"),
        ({"cost": float("inf")}, "/cost"),
        ({"input_data": [1]}, "/input_data"),
        ({"input_data": {"x": float("nan")}}, "/input_data"),
        ({"input_data": {"x": {1}}}, "/input_data"),
        ({"input_data": {1: 2}}, "/input_data"),
        ({"metadata": {"x": "y" * 20000}}, "/metadata"),
    ]
    async with app:
        for fields, pointer in bad:
            with pytest.raises(InvalidInput) as caught:
                await app.accept([Submission(**{"feature_name": "one", **fields})])
            assert caught.value.pointer == pointer, fields
        with pytest.raises(UnknownFeature, match="known are: one"):
            await app.submit("two")
        for job_id in ("x", "", "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a1", "{0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10}"):
            with pytest.raises(InvalidInput):
                await app.get(job_id)
        with pytest.raises(NotFound):
            await app.get("0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10")
        for cursor in ("x", "!!", "MS4wMDAwMDAwMA", "é"):
            with pytest.raises(InvalidInput):
                await app.list_jobs(cursor=cursor)
        assert (await app.list_jobs()).data == []


async def test_lists_are_paged_newest_first_and_a_cursor_belongs_to_its_list(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        ids = [(await app.submit("one", user_id=f"u{n % 2}")).id for n in range(7)]
        seen: list[str] = []
        cursor = None
        while True:
            page = await app.list_jobs(limit=3, cursor=cursor)
            seen += [job.job_id for job in page.data]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert seen == ids[::-1]
        page = await app.list_jobs(user_id="u0", limit=2)
        with pytest.raises(InvalidInput):
            await app.list_jobs(user_id="u1", limit=2, cursor=page.next_cursor)
        assert (await app.list_jobs(status=JobStatus.FAILED)).data == []


async def test_the_cap_on_waiting_jobs_per_user_applies(make_app: Callable[..., Fairlead]) -> None:
    from fairlead.errors import TooManyWaiting

    app = make_app(server={"max_waiting_per_user": 3})

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        outcomes = await asyncio.gather(*(app.submit("one", user_id="ada") for _ in range(10)), return_exceptions=True)
        assert sum(isinstance(outcome, TooManyWaiting) for outcome in outcomes) == 7
        await app.submit("one", user_id="bob")


async def test_only_finished_jobs_can_be_deleted(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def one(call: Call) -> str:
        return "ok"

    async with app:
        job = await app.submit("one")
        with pytest.raises(WrongState):
            await app.delete(job.id)
        await job.cancel()
        await app.delete(job.id)
        with pytest.raises(NotFound):
            await job.get()


async def test_push_task_is_a_durable_submit(make_app: Callable[..., Fairlead]) -> None:
    app = make_app()

    @app.service(limit=1)
    async def default(call: Call) -> str:
        return str(call.params["task_id"])

    async with app.running():
        assert await app.push_task("default", {"task_id": 7}) is True
        page = await app.list_jobs()
        assert (page.data[0].priority.value, page.data[0].feature_name) == ("low", "default")
        assert (await ended(app, page.data[0].job_id)).status is JobStatus.COMPLETED
        with pytest.raises(InvalidInput):
            await app.push_task("default", [7])  # type: ignore[arg-type]
        with pytest.raises(UnknownFeature):
            await app.push_task("nowhere", {})
