"""Many WebSocket watchers on one gateway while jobs run: are all events delivered, and at what cost?

    python -m bench.watchers [--watchers 2000] [--jobs 1000] [--rounds 3] [--distributed]

A real gateway (`fairlead up`; with --distributed `fairlead api` on PostgreSQL and Redis, a worker and a manager beside
it), and the watchers in another process. In each round the jobs wait until all watchers have their snapshot,
then run. Twenty more sockets follow a user each. At the end the gateway is stopped with as many watchers on it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bench.cpu import seconds_of
from bench.systems import ROOT

USERS = 20
IDLE_S = 10.0
BULK = 500
APP = "bench.ours.watched:app"


class Gateway:
    def __init__(self, folder: Path, env: dict[str, str], role: str, app: str = APP) -> None:
        self.folder = folder
        self.process = started([role, app, "--port", "0", "--json", "--log-level", "warning"], env, subprocess.PIPE)
        assert self.process.stdout is not None
        banner = json.loads(self.process.stdout.readline())
        self.port = int(banner["urls"]["gateway"][0].rpartition(":")[2].strip("/"))

    def memory(self, name: str = "VmRSS") -> float:
        """Megabytes. VmHWM is the peak since `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0]) / 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def cpu(self) -> float:
        return seconds_of({self.process.pid})

    def cpu_idle(self) -> float:
        """Percent of a core while nothing happens."""
        before, begun = self.cpu(), time.monotonic()
        time.sleep(IDLE_S)
        return (self.cpu() - before) / (time.monotonic() - begun) * 100

    def submit(self, jobs: int, **more: Any) -> list[str]:
        return self.submit_all(
            [
                {"user_id": f"user-{n % USERS}", "feature_name": "watched", "input_data": {"number": n}, **more}
                for n in range(jobs)
            ]
        )

    def submit_all(self, jobs: list[dict[str, Any]]) -> list[str]:
        made: list[str] = []
        for begin in range(0, len(jobs), BULK):
            wanted = jobs[begin : begin + BULK]
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}/api/v1/jobs/bulk",
                json.dumps({"jobs": wanted}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                made += [job["job_id"] for job in json.load(answer)["jobs"]]
        return made


def started(arguments: list[str], env: dict[str, str], out: int | IO[Any] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fairlead.cli", *arguments]
    return subprocess.Popen(command, stdout=out, text=True, env=env, cwd=ROOT)


class Watchers:
    """`plan` is what the other process reads. They are connected when this returns."""

    def __init__(self, gateway: Gateway, jobs: list[str], watchers: int, users: dict[str, int]) -> None:
        plan = {"jobs": [jobs[number % len(jobs)] for number in range(watchers)], "users": users}
        command = [sys.executable, "-m", "bench.watchers_client", str(gateway.port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=dict(os.environ)
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan))
        self._process.stdin.close()
        if self._line() != "connected":
            raise SystemExit("the watchers could not connect")

    def ended(self) -> dict[str, Any]:
        received: dict[str, Any] = json.loads(self._line())
        self._process.wait()
        return received

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextlib.contextmanager
def gateway_of(distributed: bool, folder: Path, app: str = APP) -> Iterator[Gateway]:
    env = {**os.environ, "BENCH_FOLDER": str(folder), "BENCH_DATABASE_URL": f"sqlite:///{folder}/bench.db"}
    beside: list[subprocess.Popen[str]] = []
    if distributed:
        from bench.servers import Servers

        servers = Servers()
        env |= {"BENCH_DATABASE_URL": servers.fresh(), "BENCH_REDIS_URL": servers.redis_url}
    gateway = Gateway(folder, env, "api" if distributed else "up", app)
    if distributed:
        beside = [
            started([role, app, "--log-level", "warning"], env, subprocess.DEVNULL) for role in ("worker", "manager")
        ]
    try:
        yield gateway
    finally:
        for process in (gateway.process, *beside):
            process.terminate()
        for process in (gateway.process, *beside):
            process.wait()


def one_round(gateway: Gateway, watchers: int, jobs: int) -> list[str]:
    gate = gateway.folder / "gate"
    gate.unlink(missing_ok=True)
    made = gateway.submit(jobs)
    before = gateway.memory()
    gateway.forget_peak()
    begun = time.monotonic()
    users = {f"user-{number}": len(range(number, jobs, USERS)) for number in range(USERS)}
    watching = Watchers(gateway, made, watchers, users)
    connecting = time.monotonic() - begun
    held, idle = gateway.memory(), gateway.cpu_idle()
    cpu, begun = gateway.cpu(), time.monotonic()
    gate.touch()
    received = watching.ended()
    flowing = time.monotonic() - begun
    busy = (gateway.cpu() - cpu) / flowing * 100
    due = watchers + jobs
    if received["missing"] or received["codes"].get("1000", 0) != watchers:
        raise SystemExit(f"events are missing: {received}")
    peak, after = gateway.memory("VmHWM"), gateway.memory()
    sockets = watchers + USERS
    return [
        f"{connecting:.1f} s",
        f"{before:.0f} MB",
        f"{held:.0f} MB ({(held - before) * 1024 / sockets:.1f} KB each)",
        f"{peak:.0f} MB",
        f"{after:.0f} MB",
        f"{idle:.1f} %",
        f"{busy:.0f} % for {flowing:.1f} s",
        f"{sum(received['events'].values()):,}",
        f"{received['ends']:,} of {due:,}",
        f"{received['p50_ms']:.0f} / {received['p99_ms']:.0f} ms",
    ]


def stopping(gateway: Gateway, watchers: int) -> str:
    """The time to stop the gateway with all watchers connected."""
    watching = Watchers(gateway, gateway.submit(100, delay=3600), watchers, {})
    begun = time.monotonic()
    gateway.process.send_signal(signal.SIGTERM)
    gateway.process.wait()
    took = time.monotonic() - begun
    codes = watching.ended()["codes"]
    return f"stopped in {took:.1f} s with {watchers:,} watchers on it; closed with {codes}"


HEADS = (
    "connecting", "RSS before", "all watch", "peak", "after", "CPU idle", "CPU flowing",
    "events", "ends received", "delay (p50 / p99)",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--distributed", action="store_true")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder,
        gateway_of(arguments.distributed, Path(folder)) as gateway,
    ):
        print(f"{arguments.watchers:,} watchers, {arguments.jobs:,} jobs; load {os.getloadavg()[0]:.1f}")
        print(f"CPU of the idle gateway without watchers: {gateway.cpu_idle():.1f} %\n")
        print(f"| round | {' | '.join(HEADS)} |\n|{' --- |' * (len(HEADS) + 1)}")
        for number in range(1, arguments.rounds + 1):
            row = one_round(gateway, arguments.watchers, arguments.jobs)
            print(f"| {number} | {' | '.join(row)} |", flush=True)
        print(f"\n{stopping(gateway, arguments.watchers)}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
