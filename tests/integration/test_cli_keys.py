"""`fairlead keys` on the database itself, and the processes that read them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlead.cli import database
from fairlead.cli.failure import Exit
from fairlead.errors import InvalidInput, NotFound, WrongState
from tests.integration.cli_process import DEADLINE_S, Up, fairlead, up


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands find their database."""
    for name in ("DATABASE_URL", "REDIS_URL", "FAIRLEAD_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(capsys: pytest.CaptureFixture[str]) -> Any:
    """`made("user", "ada")`: the output of `fairlead keys create --json`."""

    def make(role: str, user: str | None = None, name: str | None = None) -> dict[str, str]:
        database.create(role, user, name, json=True)
        return dict(json.loads(capsys.readouterr().out))

    return make


def test_keys_are_created_listed_and_revoked_without_a_gateway(made: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WrongState, match="first key must be an admin's"):
        database.create("user", "ada")
    database.create("admin", name="ops")
    printed, noted = capsys.readouterr()
    text = printed.strip()
    assert text.startswith("fl_"), "only the key, for scripts that store it"
    key_id, secret = text.split("_")[1:3]
    assert key_id in noted
    assert secret not in noted
    ada = made("user", "ada")
    database.revoke(ada["id"])
    with pytest.raises(WrongState):
        database.revoke(ada["id"])
    with pytest.raises(NotFound):
        database.revoke("nonsense")
    capsys.readouterr()
    database.list_keys(json=True)
    listed = capsys.readouterr().out
    assert [
        (key["id"], key["role"], key["user_id"], key["name"], bool(key["revoked_at"])) for key in json.loads(listed)
    ] == [
        (key_id, "admin", None, "ops", False),
        (ada["id"], "user", "ada", "ada", True),
    ]
    database.list_keys()
    table = capsys.readouterr().out
    assert key_id in table
    assert secret not in listed + table


def test_a_wrong_role_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(InvalidInput, match="admin, viewer, service or user"):
        database.create("root")


def test_the_command_reports_all_mistakes(here: Path) -> None:
    done = fairlead("keys", "create", "--role", "user", "--user", "ada", "--json", cwd=here)
    assert (done.code, done.out) == (Exit.REFUSED, "")
    assert json.loads(done.err)["code"] == "wrong_state"


def asked(server: Up, key: str, path: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx2.get(f"{server.url}{path}", headers=headers, trust_env=False, timeout=DEADLINE_S).status_code


def test_an_admin_key_permits_listening_beyond_loopback_and_is_then_required(here: Path, made: Any) -> None:
    """The key is in the database and in no environment variable, and running processes notice changes."""
    admin = made("admin")
    with up(here, "project:app", "--host", "0.0.0.0") as server:
        assert server.banner["key_needed"] is True
        refused = server.run("list")
        assert refused.code == Exit.REFUSED
        assert "FAIRLEAD_API_KEY" in refused.err
        ada = made("user", "ada")
        env = {"FAIRLEAD_URL": server.url, "FAIRLEAD_API_KEY": ada["key"]}
        done = fairlead("submit", "echo", "--wait", "--json", cwd=here, env=env)
        assert (done.code, done.json["user_id"]) == (Exit.OK, "ada"), "the user of the key is implied"
        assert fairlead("submit", "echo", "--user", "bob", cwd=here, env=env).code == Exit.REFUSED
        assert asked(server, ada["key"], "/admin/queue-dead") == 403
        assert asked(server, admin["key"], "/admin/queue-dead") == 200
        database.revoke(ada["id"])
        patience = time.monotonic() + DEADLINE_S
        while asked(server, ada["key"], "/api/v1/jobs") != 401:
            assert time.monotonic() < patience
        output = "".join(server.output)
        assert not [key for key in (admin["key"], ada["key"]) if key.split("_")[2] in output]


def test_a_revoked_admin_key_does_not_permit_it(here: Path, made: Any) -> None:
    database.revoke(made("admin")["id"])
    done = fairlead("up", "--host", "0.0.0.0", "--port", "0", cwd=here)
    assert done.code == Exit.USAGE
    assert "fairlead keys create --role admin" in done.err
