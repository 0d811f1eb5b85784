"""Kills the gateway while clients upload files and submit jobs over HTTP. Checks the same as `files_soak.py`, and that
every upload that was answered is there:

    python -m tests.crash.files_http --kills 50 [--distributed]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from fairlead import Fairlead
from fairlead.failpoints import (
    AFTER_CLAIM,
    AFTER_FINISH,
    FILE_COMPLETED,
    FILE_CREATED,
    FILE_WRITING,
    FILE_WRITTEN,
    PART_WRITTEN,
)
from tests.crash.files_process import PAD
from tests.crash.files_soak import PATIENCE, Killing, distributed
from tests.integration.cli_process import Up, started

POINTS = (FILE_CREATED, FILE_WRITING, FILE_WRITTEN, FILE_COMPLETED, PART_WRITTEN, AFTER_CLAIM, AFTER_FINISH)
ROOT = Path(__file__).parents[2]
APP = """
from pathlib import Path

from tests.crash.files_process import make_app

app = make_app(Path(__file__).parent)
"""
# Not the interpreter's plain command, for which the tests fork a process: it would have read the failpoint already.
UP = (sys.executable, "-X", "utf8", "-m", "fairlead.cli", "up", "files_app:app", "--port", "0", "--json")


class HttpKilling(Killing):
    def run(self, point: str) -> None:
        """Start a gateway that dies at the point, and be its client until it does."""
        (self.folder / "files_app.py").write_text(APP, encoding="ascii")
        after = {"FAIRLEAD_FAILPOINT": point, "FAIRLEAD_FAILPOINT_AFTER": str(self.chance.randint(1, 4))}
        environment = {**self.environment, **after, "PYTHONPATH": str(ROOT)}
        with started(UP, cwd=self.folder, env=environment) as gateway:
            try:
                line = gateway.wait_for('"process"')
            except AssertionError:
                # It may die before it is ready: the jobs of the last one run again.
                if gateway.ended() != -signal.SIGKILL:
                    raise
            else:
                self._be_client(gateway, json.loads(line)["urls"]["gateway"][0])
            self.kills[point] = self.kills.get(point, 0) + 1

    def _be_client(self, gateway: Up, url: str) -> None:
        until = time.monotonic() + PATIENCE
        with httpx2.Client(base_url=url, trust_env=False, timeout=30) as client:
            while time.monotonic() < until:
                try:
                    self._round(client, f"h{self.runs}")
                except httpx2.TransportError:
                    code = gateway.ended()
                    assert code == -signal.SIGKILL, f"{code}: {''.join(gateway.output)[-3000:]}"
                    return
                self.runs += 1
        raise AssertionError("the gateway passed its failpoint too rarely")

    def _round(self, client: httpx2.Client, name: str) -> None:
        """What one client does. If the gateway dies, the next one gets the same requests again."""
        content = f"{name} ".encode() * 3000
        whole = _json(
            client.post("/api/v1/files", params={"filename": f"{name}.bin", "user_id": "ada"}, content=content), 201
        )
        self._note("uploaded", whole["id"])
        begun = _json(client.post("/api/v1/uploads", json={"filename": f"{name}.parts", "user_id": "ada"}), 201)
        parts = f"/api/v1/uploads/{begun['id']}"
        for offset, part in ((0, content), (len(content), b"tail")):
            _json(client.patch(parts, content=part, headers={"Upload-Offset": str(offset)}), 200)
        assembled = _json(client.post(f"{parts}/complete"), 200)
        self._note("uploaded", assembled["id"])
        jobs = []
        for file in (whole, assembled):
            given = {"file": {"$file": file["id"]}, "pad": PAD, "name": name}
            body = {"feature_name": "work", "input_data": given, "user_id": "ada"}
            key = {"Idempotency-Key": f"{name}-{file['id']}"}
            jobs.append(_json(client.post("/api/v1/jobs", json=body, headers=key), 202)["job_id"])
            self._note("accepted", jobs[-1])
        for job in jobs:
            assert _json(client.get(f"/api/v1/jobs/{job}", headers={"Prefer": "wait=20"}), 200)["status"] == "COMPLETED"
        self._note("deleted", jobs[0])  # before the request: it may be done although its answer is lost
        _json(client.delete(f"/api/v1/jobs/{jobs[0]}"), 204)

    def _note(self, name: str, line: str) -> None:
        with (self.folder / name).open("a", encoding="ascii") as file:
            file.write(f"{line}\n")

    async def _all_references(self, app: Fairlead, jobs: set[str]) -> set[str]:
        for file_id in self._lines("uploaded"):
            await app.files.read_all(await app.files.get_complete(file_id))
        return await super()._all_references(app, jobs)


def _json(response: httpx2.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    return response.json() if response.content else None


async def kill_gateways(points: Sequence[str], environment: dict[str, str], seed: int) -> str:
    """Kill a gateway at each of these points. Returns a summary."""
    with tempfile.TemporaryDirectory() as folder:
        killing = HttpKilling(Path(folder), environment, random.Random(seed))
        for point in points:
            await asyncio.to_thread(killing.run, point)
        return await killing.check()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    environment = await distributed() if options.distributed else {}
    began = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    points = [POINTS[number % len(POINTS)] for number in range(options.kills)]
    print(await kill_gateways(points, environment, options.seed), f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
