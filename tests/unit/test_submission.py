from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any

import pytest

from fairlead.domain.config import Config
from fairlead.domain.submission import Submission, SubmissionChecker, check
from fairlead.domain.transitions import Submit
from fairlead.errors import InvalidInput, RequestError

CONFIG = Config.model_validate({"services": {"echo": {"limit": 1, "function": "echo:echo"}}})


@pytest.mark.parametrize("field", ["delay", "cost", "deadline"])
@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), 1e300, True, "5 minutes", 5j])
def test_out_of_range_numbers_are_typed_errors(field: str, value: Any) -> None:
    for key in (None, "key"):
        with pytest.raises(InvalidInput) as caught:
            check(Submission("echo", **{field: value}), CONFIG, now=0.0, idempotency_key=key)
        assert caught.value.pointer == f"/{field}"


@pytest.mark.parametrize("field", ["input_data", "metadata"])
@pytest.mark.parametrize("value", [{"n": 10**400}, {"n": float("nan")}, {"n": object()}, {1: 2}, {"s": "\ud800"}, [1]])
def test_values_that_json_cannot_hold_are_typed_errors(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(Submission("echo", **{field: value}), CONFIG, now=0.0, idempotency_key="key")
    assert caught.value.pointer == f"/{field}"


@pytest.mark.parametrize("priority", [b"high", object(), [[]]])
def test_a_priority_that_is_not_text_is_a_typed_error(priority: Any) -> None:
    with pytest.raises(InvalidInput, match="high, medium or low"):
        check(Submission("echo", priority=priority), CONFIG, now=0.0)


def test_the_name_of_a_feature_may_be_a_member_of_an_enumeration() -> None:
    class Feature(StrEnum):
        ECHO = "echo"

    assert check(Submission(Feature.ECHO), CONFIG, now=0.0).job.steps == ("echo",)


BULK = [
    Submission("echo", {"n": 1}, "ann"),
    Submission("echo", {"n": 2}, "bob", metadata={"of": "bob"}),
    Submission("other", {"n": 3}, "bob"),
    Submission("echo", {"n": 4}, "ann", priority="high"),
    Submission("echo", {"n": 5}, "ann", priority="higher"),
    Submission("echo", {"n": 6}, "ann", delay=1),
    Submission("echo", {"n": 7}, "ann", delay=True),
    Submission("echo", {"n": 8}, "ann", cost=2.5, deadline=9.0),
    Submission("echo", {"n": 9}, "ann", region="eu"),
    Submission("echo", {"n": 10}, ""),
    Submission("echo", "eleven", "ann"),
    Submission(["echo"], {"n": 12}, "ann"),  # type: ignore[arg-type]
    Submission("nothing", {"n": 13}, "ann"),
    Submission("nothing", {"n": 14}, "ann"),
    Submission("echo", {"n": 15}, "cid"),
]


def test_a_job_of_a_bulk_is_validated_like_a_single_one() -> None:
    services = {name: {"limit": 1, "function": "echo:echo"} for name in ("echo", "other")}
    config = Config.model_validate({"services": services})

    def outcome(submit_of: Callable[[], Submit]) -> Submit | str:
        try:
            submit = submit_of()
        except RequestError as error:
            return f"{error.message} {error.pointer}"
        return replace(submit, job=replace(submit.job, id="any"))

    checks = SubmissionChecker(config, now=5.0)
    for wanted in BULK:
        assert outcome(partial(checks.submit_of, wanted)) == outcome(partial(check, wanted, config, now=5.0))
