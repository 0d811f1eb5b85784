"""The guides cover every error code and every public call, and the README's example runs."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import Fairlead
from fairlead.domain import retry, turns
from fairlead.executors.port import Call

ROOT = Path(__file__).parents[2]
TURN_CODES = [turns.NOT_TAKEN, turns.WAITER_GONE, turns.HOLDER_DIED]
CODES = [value for name, value in vars(retry).items() if name.isupper() and isinstance(value, str)]


@pytest.mark.parametrize("code", CODES)
def test_every_reason_for_a_failure_is_explained(code: str) -> None:
    assert code in (ROOT / "docs/services.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["docs/turns.md", "docs/services.md"])
@pytest.mark.parametrize("code", TURN_CODES)
def test_every_way_that_a_turn_fails_is_explained(code: str, page: str) -> None:
    assert f"`{code}`" in (ROOT / page).read_text(encoding="utf-8")


def test_every_call_of_the_app_is_in_the_guide() -> None:
    guide = (ROOT / "docs/python.md").read_text(encoding="utf-8") + (ROOT / "README.md").read_text(encoding="utf-8")
    internal = {"open", "close", "accept", "places", "places_of_new", "check", "feed", "owner_of"}
    internal |= {"accept_batch", "owner_of_batch"}
    internal |= {"open_session", "session", "close_session", "now"}  # of the dashboard
    internal |= {"issue_ticket", "use_ticket", "count_keys", "was_submitted", "leaderless"}
    calls = {
        name for name, _ in inspect.getmembers(Fairlead, inspect.isfunction) if not name.startswith("_")
    } - internal
    assert {name for name in calls if not re.search(rf"\b{name}\b", guide)} == set()


def test_every_field_of_a_call_is_in_the_guide() -> None:
    guide = (ROOT / "docs/services.md").read_text(encoding="utf-8")
    given = set(inspect.signature(Call.__init__).parameters) - {
        "self",
        "params_json",
        "context_json",
        "report",
        "region",
    }
    assert {
        name for name in given | {"params", "context", "result_of", "progress"} if f"call.{name}" not in guide
    } == set()


def test_the_readmes_example_runs_beside_its_configuration(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    settings = re.search(r"```toml\n(.*?)```", readme, re.DOTALL)
    assert example is not None
    assert settings is not None
    (tmp_path / "example.py").write_text(example.group(1), encoding="utf-8")
    (tmp_path / "fairlead.toml").write_text(settings.group(1), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "a picture of a story about a harbour" in ended.stdout


def test_the_readmes_example_is_typed_for_its_users(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert example is not None
    typed = example.group(1).replace("-> dict:", "-> dict[str, str]:")
    (tmp_path / "example.py").write_text(typed, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "example.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
