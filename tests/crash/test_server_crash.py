"""kill -9 of the whole server, at random moments under load: no accepted job is lost or duplicated."""

import asyncio
import json
import os
import random
import sqlite3
from collections import Counter
from pathlib import Path

import httpx2
import pytest

from tests.integration.cli_process import COMMAND, started

ROUNDS = 6
CLIENTS = 8
PATIENCE = 60.0

PROJECT = '''
import asyncio
import os

from fairlead import Call, Fairlead

app = Fairlead()
log = os.open("effects.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@app.service(limit=6, max_attempts=1000, backoff=[0])
async def first(call: Call):
    """Leaves a mark that survives the process, so that the test can count the calls."""
    os.write(log, f"{call.job_id} {call.step_index}\\n".encode())
    await asyncio.sleep(0.02)
    return {"n": call.params["n"]}


@app.service(limit=3, max_attempts=1000, backoff=[0])
def second(call: Call):
    os.write(log, f"{call.job_id} {call.step_index}\\n".encode())
    return call.result_of("first")


app.pipeline("both", ["first", "second"])
'''


class Client:
    """Submits continuously; a submit that was not acknowledged is repeated with the same key."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent = 0
        self.acknowledged: dict[str, str] = {}

    async def submit(self, http: httpx2.AsyncClient, first: asyncio.Event) -> None:
        while True:
            key = f"{self.number}-{self.sent}"
            body = {"user_id": f"user{self.number}", "feature_name": "both", "input_data": {"n": self.sent}}
            try:
                answer = await http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": key})
            except httpx2.HTTPError:
                return  # the server is gone, so it is unknown whether this job was accepted
            assert answer.status_code == 202, answer.text
            self.acknowledged[key] = answer.json()["job_id"]
            self.sent += 1
            first.set()


@pytest.mark.timeout(300)
async def test_every_accepted_job_ends_once_whenever_the_server_is_killed(tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(PROJECT, encoding="utf-8")
    clients = [Client(number) for number in range(CLIENTS)]
    chance = random.Random()
    for _ in range(ROUNDS):
        await killed_under_load(tmp_path, clients, chance.uniform(0.0, 1.0))
    accepted = {job_id for client in clients for job_id in client.acknowledged.values()}
    assert len(accepted) > 5 * ROUNDS, "hardly any load"
    await all_end(tmp_path, accepted)
    check_the_database(tmp_path, clients, accepted)


async def killed_under_load(cwd: Path, clients: list[Client], after: float) -> None:
    with started((*COMMAND, "up", "project:app", "--port", "0", "--json"), cwd=cwd) as server:
        async with httpx2.AsyncClient(base_url=await listening(server), timeout=5) as http:
            first = asyncio.Event()
            tasks = [asyncio.create_task(client.submit(http, first)) for client in clients]
            await asyncio.wait_for(first.wait(), PATIENCE)
            await asyncio.sleep(after)  # the random moment
            server.process.kill()
            await asyncio.gather(*tasks)


async def all_end(cwd: Path, accepted: set[str]) -> None:
    with started((*COMMAND, "up", "project:app", "--port", "0", "--json"), cwd=cwd) as server:
        async with httpx2.AsyncClient(base_url=await listening(server), timeout=30) as http, asyncio.timeout(PATIENCE):
            for job_id in accepted:
                while (job := (await http.get(f"/api/v1/jobs/{job_id}")).json())["status"] != "COMPLETED":
                    assert job["status"] in ("PENDING", "RUNNING", "RETRYING"), job
                    await asyncio.sleep(0.02)


async def listening(server: object) -> str:
    banner = await asyncio.to_thread(server.wait_for, '"urls"')  # type: ignore[attr-defined]
    return str(json.loads(banner)["urls"]["gateway"][0])


def check_the_database(cwd: Path, clients: list[Client], accepted: set[str]) -> None:
    database = sqlite3.connect(cwd / "fairlead.db")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    jobs = {row[0] for row in database.execute("SELECT id FROM job")}
    assert accepted <= jobs
    # A submit whose answer was lost was repeated with its key: it created one job, not two.
    assert len(jobs) <= sum(client.sent + 1 for client in clients)
    results = Counter(
        (row[0], row[1]) for row in database.execute("SELECT job.id, r.step FROM job JOIN step_result r USING (seq)")
    )
    assert all(results[job_id, step] == 1 for job_id in accepted for step in (0, 1))
    database.close()
    calls = Counter((cwd / "effects.log").read_text(encoding="utf-8").splitlines())
    for job_id in accepted:
        for step in (0, 1):
            assert 1 <= calls[f"{job_id} {step}"] <= 1 + ROUNDS, "at least once, and again only after a kill"
    repeated = sum(count > 1 for count in calls.values())
    assert repeated <= ROUNDS * 9, "only calls that were running at a kill are repeated"
    assert os.path.getsize(cwd / "effects.log") > 0
