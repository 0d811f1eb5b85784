"""The output of jobs on the command line, and when processes die: real processes, some on PostgreSQL and Redis."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Chunk, Client, Restart
from fairlead.cli.failure import Exit
from tests.integration.cli_process import Up, running, up
from tests.redis_servers import port_of, start_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("server")) as running:
        yield running


def talk(*words: object, **more: object) -> str:
    return json.dumps({"words": words, **more})


def test_submit_streams_the_output(server: Up) -> None:
    done = server.run("submit", "talk", talk("one ", "two \x1b[31mred\n", "three"), "--stream")
    assert (done.code, done.out) == (Exit.OK, "one two \\x1b[31mred\nthree\n")
    done = server.run("submit", "talk", talk({"n": 1}, {"n": 2}), "--stream")
    assert (done.code, done.out) == (Exit.OK, '{"n": 1}\n{"n": 2}\n')
    done = server.run("submit", "talk", talk("one"), "--stream", "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["type"] for line in lines] == ["chunk", "end"]


def test_watch_prints_the_output_of_a_job(server: Up) -> None:
    job_id = server.run("submit", "talk", talk("one ", "two"), "--json").json["job_id"]
    done = server.run("watch", job_id, "--output")
    assert (done.code, done.out) == (Exit.OK, "one two\n")


def test_a_failed_job_prints_its_output_and_its_error(server: Up) -> None:
    done = server.run("submit", "talk", talk("one", fails=True), "--stream")
    assert (done.code, done.out) == (Exit.JOB_FAILED, "one\n")
    assert "no more words" in done.err


def test_a_worker_that_is_killed_in_the_middle_means_one_restart_and_the_whole_text(
    tmp_path: Path, database: str
) -> None:
    redis = start_server()
    redis.close()
    engines = {"DATABASE_URL": database, "REDIS_URL": f"redis://127.0.0.1:{port_of(redis)}/0"}
    words = [f"word {number} " for number in range(10)]
    with (
        running("manager", tmp_path, env=engines),
        running("api", tmp_path, env=engines) as gateway,
        running("worker", tmp_path, env=engines) as first,
        Client(gateway.url) as client,
    ):
        job = client.submit("talk", {"words": words, "gate": str(tmp_path / "gate"), "after": 5}, user_id="ada")
        got: list[object] = []
        output = client.stream(job)
        while len(got) < 5:
            got.append(next(output))
        first.signal(signal.SIGKILL)
        first.ended()
        (tmp_path / "gate").touch()
        with running("worker", tmp_path, env=engines):
            got += output
            assert [each for each in got if isinstance(each, Restart)] == [Restart(0)]
            after = got[got.index(Restart(0)) + 1 :]
            assert [str(each) for each in after] == words
            assert {each.attempt for each in after if isinstance(each, Chunk)} == {2}
            assert job.result(timeout=60) == "".join(words)
