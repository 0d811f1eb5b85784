from __future__ import annotations

from typing import Any

import pytest

from fairlead.domain.config import Config
from fairlead.errors import InvalidInput
from fairlead.runtime.submission import Submission, check

CONFIG = Config.model_validate({"services": {"echo": {"limit": 1, "function": "echo:echo"}}})


@pytest.mark.parametrize("field", ["delay", "cost", "deadline"])
@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), 1e300, True, "5 minutes", 5j])
def test_numbers_beyond_all_measure_are_typed_errors(field: str, value: Any) -> None:
    for key in (None, "key"):
        with pytest.raises(InvalidInput) as caught:
            check(Submission("echo", **{field: value}), CONFIG, now=0.0, idempotency_key=key)
        assert caught.value.pointer == f"/{field}"


@pytest.mark.parametrize("field", ["input_data", "metadata"])
@pytest.mark.parametrize("value", [{"n": 10**400}, {"n": float("nan")}, {"n": object()}, {1: 2}, {"s": "\ud800"}, [1]])
def test_what_json_cannot_say_is_a_typed_error(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(Submission("echo", **{field: value}), CONFIG, now=0.0, idempotency_key="key")
    assert caught.value.pointer == f"/{field}"


@pytest.mark.parametrize("priority", [b"high", object(), [[]]])
def test_a_priority_that_is_no_text_is_a_typed_error(priority: Any) -> None:
    with pytest.raises(InvalidInput, match="high, medium or low"):
        check(Submission("echo", priority=priority), CONFIG, now=0.0)
