"""The synchronous client is the asynchronous one without `await`."""

from __future__ import annotations

import pytest
from tools.generate_sync_client import CLIENT, TWINS, converted


@pytest.mark.parametrize(("source", "target"), TWINS.items())
def test_the_generated_client_is_up_to_date(source: str, target: str) -> None:
    text = (CLIENT / source).read_text(encoding="utf-8")
    assert (CLIENT / target).read_text(encoding="utf-8") == converted(text, source), "run `make generate`"


def test_names_in_every_kind_of_string_are_renamed() -> None:
    text = """def f(job: AsyncJob) -> str:
    return "AsyncJob " + f"AsyncJob({job.id!r}, {f'AsyncBatch {job}'})"
"""
    renamed = text.replace("Async", "Client")
    assert converted(text, "asynchronous.py").endswith(renamed)
