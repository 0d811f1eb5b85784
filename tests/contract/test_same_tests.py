"""One contract, two engines: each must run every test of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.contract.stores import ENGINES

ROOT = Path(__file__).parents[2]


def test_every_engine_runs_the_same_tests_of_the_store() -> None:
    """Collects the tests again, so that the check holds for any selection of tests. `tests/servers.py` checks that
    collected tests are not skipped."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:randomly", "tests/contract/store"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    tests: dict[str, list[str]] = {engine: [] for engine in ENGINES}
    of_an_engine = re.compile(rf"(.*)\b({'|'.join(ENGINES)})\b(.*)")
    for test in found:
        if test.startswith("tests/contract/store/test_store"):
            name, parameters = test.split("[", 1) if "[" in test else (test, "")
            match = of_an_engine.fullmatch(parameters)
            assert match is not None, f"{test} does not say on which engine it runs"
            tests[match[2]].append(f"{name}[{match[1]}ENGINE{match[3]}")
    assert set(ENGINES) == {"postgres", "sqlite"}
    assert len(tests["sqlite"]) > 80
    assert tests["postgres"] == tests["sqlite"]
