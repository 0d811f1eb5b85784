"""Finding jobs: the filters by service and error code, and the search of the dashboard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead import Config, Fairlead, JobStatus
from fairlead.gateway import models_admin
from tests.integration.gateway_site import Site

PATIENCE = 30.0
ADMIN = "fl_admin_0123456789abcdef0123456789abcdef"
MakeSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def keyed(make_site: MakeSite) -> tuple[Site, dict[str, dict[str, str]]]:
    site = await make_site(admin_key=ADMIN)
    keys = {
        "admin": ADMIN,
        "ada": (await site.app.create_key("user", user_id="ada")).text,
        "service": (await site.app.create_key("service", name="shop")).text,
    }
    return site, {name: {"Authorization": f"Bearer {key}"} for name, key in keys.items()}


async def test_jobs_are_filtered_by_service_and_error_code(site: Site) -> None:
    failed = await site.submit(feature_name="broken")
    done = await site.submit(feature_name="echo_then_shout")
    for job_id in (failed, done):
        await site.app.wait(job_id, PATIENCE)

    async def listed(**query: str) -> list[str]:
        answer = await site.client.get("/api/v1/jobs", params=query)
        assert answer.status_code == 200, answer.text
        return [job["job_id"] for job in answer.json()["data"]]

    assert await listed(error_code="PERMANENT") == [failed]
    assert await listed(error_code="PERMANENT", status="COMPLETED") == []
    assert await listed(error_code="HTTP_503") == []
    assert await listed(service="broken") == [failed]
    assert await listed(service="shout") == [done]  # the last step of a finished job
    assert await listed(service="echo") == []


async def test_a_filter_without_an_index_examines_a_bounded_number_of_jobs(
    embedded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.app.job_commands.WINDOW", 3)
    app = Fairlead(
        Config.model_validate({"services": {name: {"url": "http://x/", "limit": 1} for name in "ab"}}), **embedded
    )
    async with app:
        rare = [(await app.submit("b")).id for _ in range(2)]
        for _ in range(7):
            await app.submit("a")
        pages, cursor = [], None
        while True:
            page = await app.list_jobs(service="b", limit=2, cursor=cursor)
            pages.append([job.job_id for job in page.data])
            cursor = page.next_cursor
            if cursor is None:
                break
        assert pages == [[], [], rare[::-1]]
        # Open jobs have an index.
        page = await app.list_jobs(service="b", status=JobStatus.PENDING)
        assert ([job.job_id for job in page.data], page.next_cursor) == (rare[::-1], None)


async def test_a_filter_of_failed_jobs_examines_a_bounded_number_of_them(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.app.job_commands.WINDOW", 2)
    jobs = []
    for feature in ("flaky", "broken", "echo", "broken", "echo", "broken", "broken"):
        jobs.append(await site.submit(feature_name=feature))
        await site.app.wait(jobs[-1], PATIENCE)
    (code,) = {((await site.app.get(jobs[0])).error or {})["code"]}
    pages, cursor = [], None
    while True:
        page = await site.app.list_jobs(error_code=code, cursor=cursor)
        pages.append([job.job_id for job in page.data])
        cursor = page.next_cursor
        if cursor is None:
            break
    assert pages == [[], [], [jobs[0]]], "jobs that have not failed do not count"


async def test_the_search_finds_every_kind_within_the_caller_s_reach(
    keyed: tuple[Site, dict[str, dict[str, str]]],
) -> None:
    site, headers = keyed
    own = (await site.app.submit("echo", user_id="ada")).id
    other = (await site.app.submit("broken", user_id="adam")).id
    batch = (await site.app.submit_batch([{"feature_name": "echo"}], user_id="adam", name="Broken things")).id
    await site.app.wait(other, PATIENCE)

    async def found(caller: str, q: str) -> list[tuple[str, str]]:
        answer = await site.client.get("/api/v1/search", params={"q": q}, headers=headers[caller])
        results: list[dict[str, Any]] = answer.json()["results"]
        models_admin.SearchResults.model_validate({"results": results})
        return [(each["kind"], each["id"]) for each in results]

    assert await found("admin", own) == [("job", own)]
    assert await found("admin", batch.upper()) == [("batch", batch)]
    assert await found("admin", "ad") == [("user", "ada"), ("user", "adam")]
    assert await found("admin", "BROK") == [("service", "broken"), ("batch", batch)]
    assert await found("admin", "never work") == [("error", "PERMANENT")]
    assert await found("service", "never work") == []
    assert await found("service", "ada") == [("user", "ada"), ("user", "adam")]
    assert await found("ada", "ad") == []
    assert await found("ada", own) == [("job", own)]
    assert await found("ada", other) == []
    assert await found("ada", batch) == []
    assert await found("ada", "brok") == []
    refused = await site.client.get("/api/v1/search", headers=headers["admin"])
    assert refused.status_code == 422
