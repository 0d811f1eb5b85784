"""Each contract of import-linter can fail: a forbidden import, added to a copy of the source, breaks it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
# The name of a contract, and an import that it forbids: in which module, of what.
VIOLATIONS = {
    "Dependencies point down the architecture": ("engine/clock.py", "fairlead.gateway.app"),
    "The clients import the domain and the errors only": ("client/calls.py", "fairlead.store.port"),
    "The load balancer for Celery knows nothing of the engine": ("celery/balancer.py", "fairlead.store.port"),
    "The domain does no I/O and reads no clock": ("domain/job.py", "socket"),
    "SQL drivers are used in the store only": ("engine/clock.py", "asyncpg"),
    "Redis is used in dispatch/redis and beside Celery only": ("engine/clock.py", "redis"),
    "Object stores are used in artifacts only": ("engine/clock.py", "obstore"),
    "Only backends names concrete engines": ("engine/clock.py", "fairlead.store.sqlite.store"),
}


def test_every_contract_has_an_import_that_breaks_it() -> None:
    assert {contract["name"] for contract in CONTRACTS} == VIOLATIONS.keys()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contracts")
    shutil.copytree(ROOT / "src" / "fairlead", folder / "fairlead", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")
    return folder


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_forbidden_import_breaks_its_contract(name: str, copy: Path) -> None:
    module, target = VIOLATIONS[name]
    file = copy / "fairlead" / module
    text = file.read_text(encoding="utf-8")
    file.write_text(f"{text}\nimport {target}\n", encoding="utf-8")
    try:
        assert f"{name} BROKEN" in lint(copy)
    finally:
        file.write_text(text, encoding="utf-8")


def lint(folder: Path) -> str:
    code = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    done = subprocess.run([sys.executable, "-c", code, "--no-cache"], cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr
