"""Jobs without a user_id share one place in the fair order; the log names the code that submits them, once."""

from __future__ import annotations

import logging

import pytest

from fairlead import Call, Config, Fairlead, Submission
from tests.integration.gateway_site import Site

MESSAGE = "without a user_id"


@pytest.fixture
def app(embedded: dict[str, str]) -> Fairlead:
    return with_echo(Fairlead(Config(), **embedded))


def with_echo(app: Fairlead) -> Fairlead:
    @app.service(limit=1)
    async def echo(call: Call) -> dict[str, object]:
        return call.params

    return app


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if MESSAGE in record.getMessage()]


async def test_the_first_job_without_a_user_is_logged_with_its_place(
    app: Fairlead, caplog: pytest.LogCaptureFixture
) -> None:
    async with app:
        await app.submit("echo", {"n": 1})
        await app.submit("echo", {"n": 2})
        await app.submit_many([Submission("echo")])
    [text] = warnings_in(caplog)
    assert f"a job for echo was submitted without a user_id ({__file__}:" in text
    assert "[users.anonymous]" in text
    assert caplog.records[-1].levelno == logging.WARNING


async def test_a_batch_without_a_user_is_logged(app: Fairlead, caplog: pytest.LogCaptureFixture) -> None:
    async with app:
        await app.submit_batch([{"feature_name": "echo", "input_data": {}}])
    assert len(warnings_in(caplog)) == 1


async def test_jobs_with_a_user_are_not_logged(app: Fairlead, caplog: pytest.LogCaptureFixture) -> None:
    async with app:
        await app.submit("echo", user_id="ada")
        await app.submit_batch([{"feature_name": "echo", "input_data": {}}], user_id="import")
    assert warnings_in(caplog) == []


async def test_a_declared_anonymous_user_is_not_logged(
    embedded: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    config = Config.model_validate({"users": {"anonymous": {"priority": "low"}}})
    async with with_echo(Fairlead(config, **embedded)) as app:
        await app.submit("echo")
    assert warnings_in(caplog) == []


def test_submits_from_threads_are_logged_without_a_place(app: Fairlead, caplog: pytest.LogCaptureFixture) -> None:
    app.sync.submit("echo")
    app.sync.close()
    assert [text.partition(".")[0] for text in warnings_in(caplog)] == [
        "a job for echo was submitted without a user_id"
    ]


async def test_the_gateway_logs_the_service(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        response = await site.client.post("/inference", json={"model": "echo", "input_data": {}})
        assert response.status_code == 200
    assert [text.partition(".")[0] for text in warnings_in(caplog)] == [
        "a job for echo was submitted without a user_id"
    ]
