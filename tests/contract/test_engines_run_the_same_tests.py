"""Every engine must run the whole contract."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from tests.contract.dispatchers import ENGINES

ENGINE = re.compile(r"\b({})\b(?=[^\[]*\]$)".format("|".join(ENGINES)))


def test_every_engine_of_the_dispatcher_runs_the_same_tests(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("keyword") or any("::" in arg for arg in request.config.args):
        pytest.skip("only some tests were asked for")
    ran: dict[str, set[str]] = defaultdict(set)
    for item in request.session.items:
        engine = ENGINE.search(item.nodeid)
        if engine and item.path.parent.name == "contract" and item.path.name.startswith("test_dispatcher"):
            ran[engine[1]].add(ENGINE.sub("engine", item.nodeid))
    if not ran:
        pytest.skip("the dispatcher's tests were not asked for")
    assert set(ran) == set(ENGINES)
    assert all(tests == ran["memory"] for tests in ran.values())
