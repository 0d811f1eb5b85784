"""`fairlead batch` against a real `fairlead up`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.failure import Exit
from tests.integration.cli_process import Done, Up, fairlead, up


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("server")) as running:
        yield running


def run(server: Up, *arguments: str, cwd: Path, stdin: str = "") -> Done:
    return fairlead("batch", *arguments, cwd=cwd, env={"FAIRLEAD_URL": server.url}, stdin=stdin)


def lines(*items: dict[str, Any]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def test_a_file_is_submitted_and_the_results_are_written_to_a_file(server: Up, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "in.jsonl").write_text(
        lines(
            {"custom_id": "a", "input_data": {"n": 1}},
            {"custom_id": "f", "feature_name": "flaky", "input_data": {"gate": str(gate)}},
            {"feature_name": "flaky", "input_data": {"gate": str(gate)}},
        )
    )
    options = ("--user", "ada", "--feature", "echo", "--name", "three", "--priority", "low", "--key", tmp_path.name)
    submitted = run(server, "submit", "in.jsonl", *options, "--wait", "--json", cwd=tmp_path)
    assert submitted.code == Exit.JOB_FAILED, submitted.err
    batch_id, counts = submitted.json["batch_id"], submitted.json["counts"]
    assert (counts["COMPLETED"], counts["FAILED"], submitted.json["name"]) == (1, 2, "three")

    gate.touch()
    retried = run(server, "retry", batch_id, "f", cwd=tmp_path)
    assert (retried.code, retried.err) == (Exit.OK, "")
    resumed = run(server, "resume", batch_id, "--json", cwd=tmp_path)
    assert resumed.json["resumed"] == 1
    shown = run(server, "get", batch_id, "--wait", cwd=tmp_path)
    assert shown.code == Exit.OK
    assert "three" in shown.out
    assert "100% have ended" in shown.out

    assert run(server, "results", batch_id, "-o", "out.jsonl", cwd=tmp_path).out == ""
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["custom_id"], line["result"]) for line in found] == [
        ("a", {"n": 1}), ("f", {"through": True}), (None, {"through": True}),
    ]  # fmt: skip
    assert run(server, "results", batch_id, cwd=tmp_path).out == (tmp_path / "out.jsonl").read_text()
    again = run(server, "submit", "in.jsonl", *options, cwd=tmp_path)
    assert again.out.split() == [batch_id, "3", "items"]
    listed = run(server, "list", "--user", "ada", "--json", cwd=tmp_path)
    assert [batch["batch_id"] for batch in listed.json] == [batch_id]
    assert batch_id in run(server, "list", cwd=tmp_path).out


def test_all_failed_items_of_a_batch_are_retried_and_counted(server: Up, tmp_path: Path) -> None:
    item = {"user_id": "cleo", "feature_name": "broken"}
    submitted = run(
        server, "submit", "-", "--wait", cwd=tmp_path, stdin=lines(item, {**item, "feature_name": "echo"}, item)
    )
    assert submitted.code == Exit.JOB_FAILED
    batch_id = submitted.out.split()[1]
    assert f"fairlead batch retry {batch_id}" in submitted.err
    retried = run(server, "retry", batch_id, cwd=tmp_path)
    assert (retried.code, retried.out.split()) == (Exit.OK, [batch_id, "2", "items", "retried"])
    assert run(server, "get", batch_id, "--wait", cwd=tmp_path).code == Exit.JOB_FAILED
    assert run(server, "retry", batch_id, "--from-start", "--json", cwd=tmp_path).json["retried"] == 2
    one = run(server, "retry", batch_id, "0", "--from-start", cwd=tmp_path)
    assert (one.code, "--from-start" in one.err) == (Exit.USAGE, True)


def test_a_batch_from_stdin_is_cancelled(server: Up, tmp_path: Path) -> None:
    entered = {"entered": str(tmp_path / "entered"), "gate": str(tmp_path / "gate")}
    item = {"user_id": "bob", "feature_name": "gate", "input_data": entered}
    submitted = run(server, "submit", "-", cwd=tmp_path, stdin=lines(item, item))
    batch_id = submitted.out.split()[0]
    cancelled = run(server, "cancel", batch_id, cwd=tmp_path)
    assert cancelled.out.split() == [batch_id, "2", "items", "cancelled"]
    again = run(server, "cancel", batch_id, "--json", cwd=tmp_path)
    assert (again.code, json.loads(again.err)["code"]) == (Exit.REFUSED, "wrong_state")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("submit", "nowhere.jsonl"), Exit.USAGE, "nowhere.jsonl: cannot be read"),
        (("submit", "-"), Exit.REFUSED, "line 1"),
        (("results", "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10", "-o", "none.jsonl"), Exit.REFUSED, "there is no batch"),
        (("get", "."), Exit.USAGE, "is not the id of a batch"),
        (("retry", "0190d0c5-7b5a-7cc0-b1f0-3f8f4c9d2a10", "a/b"), Exit.USAGE, "use the item's number"),
    ],
)
def test_an_invalid_batch_command_is_reported(
    server: Up, tmp_path: Path, arguments: tuple[str, ...], code: Exit, text: str
) -> None:
    done = run(server, *arguments, cwd=tmp_path, stdin="{not json\n")
    assert (done.code, text in done.err) == (code, True), done.err
    assert not (tmp_path / "none.jsonl").exists()
