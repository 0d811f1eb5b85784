"""The synchronous client is the asynchronous one without `await`."""

from __future__ import annotations

import pytest
from tools.generate_sync_client import CLIENT, TWINS, converted


@pytest.mark.parametrize(("source", "target"), TWINS.items())
def test_the_generated_client_is_up_to_date(source: str, target: str) -> None:
    text = (CLIENT / source).read_text(encoding="utf-8")
    assert (CLIENT / target).read_text(encoding="utf-8") == converted(text, source), "run `make generate`"
