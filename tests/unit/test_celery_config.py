"""What is said to whoever configures a Celery task as a service, and what is made of what Celery says."""

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
from fairlead.executors.celery import lookout
from fairlead.executors.celery.answers import outcome_of
from fairlead.executors.celery.lookout import Sighting, Silence
from fairlead.executors.port import Success

TASK = {"celery": "app.tasks.generate", "limit": 1}


def problems(**celery: Any) -> str:
    app = Fairlead(Config.model_validate({"services": {"generate": TASK}, "celery": celery}))
    return "\n".join(app.check())


def test_a_broker_in_redis_is_enough_and_one_elsewhere_needs_a_result_backend() -> None:
    assert problems(broker_url="redis://localhost:1/0") == ""
    assert "set result_backend" in problems(broker_url="amqp://localhost:1")
    assert problems(broker_url="amqp://localhost:1", result_backend="redis://localhost:1") == ""


@pytest.mark.parametrize(
    ("celery", "said"),
    [
        ({}, "celery.app"),
        ({"app": "no.such.module:app"}, "cannot be imported"),
        ({"app": "os:getcwd"}, "not a Celery app"),
        ({"broker_url": "amqp://h", "result_backend": "rpc://"}, "use redis://"),
        ({"broker_url": "redis://h", "result_backend": "nosuch://h"}, "cannot be used"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_sent(celery: dict[str, Any], said: str) -> None:
    assert said in problems(**celery)


def test_an_app_whose_results_are_pickled_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pickling_team.py").write_text(
        "from celery import Celery\n"
        "app = Celery('t', broker='redis://h', backend='redis://h', set_as_current=False)\n"
        "app.conf.result_serializer = 'pickle'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "nothing is unpickled" in problems(app="pickling_team:app")
    sys.modules.pop("pickling_team")


def test_a_service_is_one_thing_only() -> None:
    with pytest.raises(ConfigError, match="url and celery are given"):
        load_text('[services.generate]\nlimit = 1\ncelery = "a.b"\nurl = "http://h/"\n')


def load_text(text: str, environ: dict[str, str] | None = None, file: str = "fairlead.toml") -> Config:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        path.write_text(text)
        return load(path, environ or {}).config


def test_the_environment_of_celery_is_understood() -> None:
    config = load_text("", {"CELERY_BROKER_URL": "redis://b/1", "CELERY_RESULT_BACKEND": "redis://r/2"})
    assert (config.celery.broker_url, config.celery.result_backend) == ("redis://b/1", "redis://r/2")


def test_passwords_of_the_broker_are_not_shown() -> None:
    said = {"broker_url": "amqp://ada:secret@h//", "result_backend": "redis://:secret@h/0"}
    shown = shown_settings(Settings(Config.model_validate({"celery": said})))
    assert "secret" not in str(shown["celery"])
    assert "ada" in shown["celery"]["broker_url"]


def test_an_endpoint_has_the_envelope_and_a_task_its_own_arguments() -> None:
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
    assert services["task"].remote, "it computes on when our worker dies"


# ---------------------------------------------------------------- what Celery says


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
def test_each_failure_of_a_task_has_its_meaning(error: Any, code: str, retryable: bool) -> None:
    outcome = ended("FAILURE", error)
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.retryable) == (code, retryable)


def test_what_was_revoked_is_final_and_what_expired_passes() -> None:
    by_somebody = ended("REVOKED", exception("TaskRevokedError", "celery.exceptions", "terminated"))
    expired = ended("REVOKED", exception("TaskRevokedError", "celery.exceptions", "expired"))
    assert isinstance(by_somebody, Failure)
    assert isinstance(expired, Failure)
    assert (by_somebody.code, by_somebody.retryable) == ("PERMANENT", False)
    assert (expired.code, expired.retryable) == ("TIMEOUT", True)


def test_a_result_is_what_it_returned_if_that_is_not_too_large() -> None:
    assert ended("SUCCESS", {"a": [1, None]}) == Success('{"a":[1,null]}')
    large = ended("SUCCESS", "x" * 200)
    assert isinstance(large, Failure)
    assert large.code == "BAD_RESULT"


# ---------------------------------------------------------------- who is silent


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lookout, "time", clock)
    return clock


HERE = Sighting(frozenset({"w1"}), {"t1": ("w1", "active")})
OTHERS = Sighting(frozenset({"w2"}))


def lost(silence: Silence, sighting: Sighting, *tasks: str) -> list[str]:
    return [task_id for task_id, _ in silence.lost(sighting, tasks)]


def test_a_task_is_lost_when_it_was_seen_and_no_worker_has_it_any_more(clock: Clock) -> None:
    silence = Silence(10)
    assert lost(silence, HERE, "t1", "queued") == []
    clock.now += 9
    assert lost(silence, OTHERS, "t1", "queued") == []
    clock.now += 1
    assert lost(silence, OTHERS, "t1", "queued") == ["t1"], "what waits in the broker has no worker yet"


def test_a_task_that_is_seen_again_was_never_lost(clock: Clock) -> None:
    silence = Silence(10)
    for _ in range(5):
        assert lost(silence, HERE, "t1") == []
        clock.now += 6
        assert lost(silence, OTHERS, "t1") == []
        clock.now += 3


def test_when_nobody_answers_all_is_lost(clock: Clock) -> None:
    silence = Silence(10)
    silence.begin()
    clock.now += 5
    assert lost(silence, Sighting(), "t1", "t2") == []
    clock.now += 5
    assert lost(silence, Sighting(), "t1", "t2") == ["t1", "t2"]


def test_silence_does_not_count_while_nobody_was_asked(clock: Clock) -> None:
    silence = Silence(10)
    assert lost(silence, HERE, "t1") == []
    clock.now += 1000
    silence.begin()
    assert lost(silence, Sighting(), "t1") == []
