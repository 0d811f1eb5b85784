"""Configuration errors of Celery services, and the mapping of Celery's results to outcomes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead import Config, Fairlead
from fairlead.cli.redact import shown_settings
from fairlead.config import Settings, load
from fairlead.domain.retry import Failure
from fairlead.errors import ConfigError
from fairlead.executors.celery import celery_client
from fairlead.executors.celery.celery_client import Silence, Survey
from fairlead.executors.celery.results import _read, outcome_of
from fairlead.executors.port import Success

TASK = {"celery": "app.tasks.generate", "limit": 1}


def problems(**celery: Any) -> str:
    app = Fairlead(Config.model_validate({"services": {"generate": TASK}, "celery": celery}))
    return "\n".join(app.check())


def test_a_redis_broker_suffices_and_any_other_needs_a_result_backend() -> None:
    assert problems(broker_url="redis://localhost:1/0") == ""
    assert "set result_backend" in problems(broker_url="amqp://localhost:1")
    assert problems(broker_url="amqp://localhost:1", result_backend="redis://localhost:1") == ""


@pytest.mark.parametrize(
    ("celery", "problem"),
    [
        ({}, "celery.app"),
        ({"app": "no.such.module:app"}, "cannot be imported"),
        ({"app": "os:getcwd"}, "not a Celery app"),
        ({"broker_url": "amqp://h", "result_backend": "rpc://"}, "use redis://"),
        ({"broker_url": "redis://h", "result_backend": "nosuch://h"}, "cannot be used"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_at_startup(celery: dict[str, Any], problem: str) -> None:
    assert problem in problems(**celery)


def test_an_app_with_pickled_results_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pickling_team.py").write_text(
        "from celery import Celery\n"
        "app = Celery('t', broker='redis://h', backend='redis://h', set_as_current=False)\n"
        "app.conf.result_serializer = 'pickle'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "only json is supported" in problems(app="pickling_team:app")
    sys.modules.pop("pickling_team")


def test_a_service_has_one_executor() -> None:
    with pytest.raises(ConfigError, match="url and celery are both set"):
        load_text('[services.generate]\nlimit = 1\ncelery = "a.b"\nurl = "http://h/"\n')


def load_text(text: str, environ: dict[str, str] | None = None, file: str = "fairlead.toml") -> Config:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_text(text)
        return load(path, environ or {}).config


def test_celerys_environment_variables_are_read() -> None:
    config = load_text("", {"CELERY_BROKER_URL": "redis://b/1", "CELERY_RESULT_BACKEND": "redis://r/2"})
    assert (config.celery.broker_url, config.celery.result_backend) == ("redis://b/1", "redis://r/2")


def test_the_brokers_passwords_are_hidden() -> None:
    celery = {"broker_url": "amqp://ada:secret@h//", "result_backend": "redis://:secret@h/0"}
    shown = shown_settings(Settings(Config.model_validate({"celery": celery})))
    assert "secret" not in str(shown["celery"])
    assert "ada" in shown["celery"]["broker_url"]


def test_an_endpoint_receives_the_envelope_and_a_task_its_own_arguments() -> None:
    services = Config.model_validate(
        {
            "services": {
                "task": TASK,
                "endpoint": {"url": "http://h/", "limit": 1},
                "both": {**TASK, "format": "envelope"},
            }
        }
    ).services
    assert (services["task"].raw, services["endpoint"].raw, services["both"].raw) == (True, False, False)
    assert services["task"].remote, "the task keeps running when our worker dies"


# ---------------------------------------------------------------- results


def ended(status: str, result: Any) -> Success | Failure:
    return outcome_of({"status": status, "result": result}, raw=True, max_result=100)


def exception(name: str, module: str, *message: Any) -> dict[str, Any]:
    return {"exc_type": name, "exc_module": module, "exc_message": list(message)}


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (exception("ValueError", "builtins", "no"), "EXCEPTION", True),
        (exception("Permanent", "fairlead.errors", "no"), "PERMANENT", False),
        (exception("Permanent", "somebody.else", "no"), "EXCEPTION", True),
        (exception("Retry", "fairlead.errors", "no"), "RETRY_ASKED", True),
        (exception("WorkerLostError", "billiard.exceptions", "killed"), "WORKER_DIED", True),
        (exception("TimeLimitExceeded", "billiard.exceptions", 3), "TIMEOUT", True),
        (exception("NotRegistered", "celery.exceptions", "a.b"), "PERMANENT", False),
        (exception("EncodeError", "kombu.exceptions", "no"), "BAD_RESULT", False),
        (ValueError("no"), "EXCEPTION", True),
        ("nonsense", "EXCEPTION", True),
        (None, "EXCEPTION", True),
    ],
)
def test_each_task_failure_has_its_outcome(error: Any, code: str, retryable: bool) -> None:
    outcome = ended("FAILURE", error)
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.retryable) == (code, retryable)


def test_a_revoked_task_fails_for_good_and_an_expired_one_is_retried() -> None:
    revoked = ended("REVOKED", exception("TaskRevokedError", "celery.exceptions", "terminated"))
    expired = ended("REVOKED", exception("TaskRevokedError", "celery.exceptions", "expired"))
    assert isinstance(revoked, Failure)
    assert isinstance(expired, Failure)
    assert (revoked.code, revoked.retryable) == ("PERMANENT", False)
    assert (expired.code, expired.retryable) == ("TIMEOUT", True)


def test_a_result_is_the_returned_value_unless_it_is_too_large() -> None:
    assert ended("SUCCESS", {"a": [1, None]}) == Success('{"a":[1,null]}')
    large = ended("SUCCESS", "x" * 200)
    assert isinstance(large, Failure)
    assert large.code == "BAD_RESULT"


# ---------------------------------------------------------------- lost tasks


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(celery_client, "time", clock)
    return clock


HERE = Survey(frozenset({"w1"}), {"t1": ("w1", "active")})
OTHERS = Survey(frozenset({"w2"}))


def lost(silence: Silence, sighting: Survey, *tasks: str) -> list[str]:
    return [task_id for task_id, _ in silence.lost(sighting, tasks)]


def test_a_task_is_lost_when_a_worker_had_it_and_no_worker_has_it_now(clock: Clock) -> None:
    silence = Silence(10)
    assert lost(silence, HERE, "t1", "queued") == []
    clock.now += 9
    assert lost(silence, OTHERS, "t1", "queued") == []
    clock.now += 1
    assert lost(silence, OTHERS, "t1", "queued") == ["t1"], "a task that waits in the broker has no worker yet"


def test_a_task_that_is_seen_again_is_not_lost(clock: Clock) -> None:
    silence = Silence(10)
    for _ in range(5):
        assert lost(silence, HERE, "t1") == []
        clock.now += 6
        assert lost(silence, OTHERS, "t1") == []
        clock.now += 3


def test_all_tasks_are_lost_when_no_worker_answers(clock: Clock) -> None:
    silence = Silence(10)
    silence.begin()
    clock.now += 5
    assert lost(silence, Survey(), "t1", "t2") == []
    clock.now += 5
    assert lost(silence, Survey(), "t1", "t2") == ["t1", "t2"]


def test_silence_counts_only_after_a_question(clock: Clock) -> None:
    silence = Silence(10)
    assert lost(silence, HERE, "t1") == []
    clock.now += 1000
    silence.begin()
    assert lost(silence, Survey(), "t1") == []


def test_an_integer_beyond_64_bits_in_a_result_is_refused_and_not_rounded() -> None:
    meta = _read(f'{{"status": "SUCCESS", "result": {10**30}}}'.encode())
    failure = outcome_of(meta, raw=True, max_result=100)
    assert isinstance(failure, Failure)
    assert "an integer beyond 64 bits" in failure.message


def test_a_query_of_the_workers_finds_the_tasks_of_every_worker() -> None:
    class Control:
        def broadcast(self, *_: object, **__: object) -> list[dict[str, object]]:
            return [
                {"one@host": {"a": ["active", {}]}},
                {"two@host": {"b": ["reserved", {}]}},
                {"three@host": {"error": "query_task failed"}},
                {"four@host": {}},
            ]

    class App:
        control = Control()

    survey = celery_client.look(App(), ["a", "b"])
    assert survey.workers == {"one@host", "two@host", "three@host", "four@host"}
    assert survey.tasks == {"a": ("one@host", "active"), "b": ("two@host", "reserved")}
