"""Calls through a whole system against a provider that counts every sliding window by itself: `python -m
tests.chaos.rates`. It loses Redis, kills a worker and changes the limit meanwhile.

    --calls 500 --clients 20 --gateways 4 --workers 3 --requests 50 --per 5 [--calm]

`--calm` leaves the faults out. Exits with 1 if the provider saw more than the rate, answered 429, or if less than 95 %
of the rate was used.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests import servers
from tests.chaos.process import Process, free_port, until_listening
from tests.chaos.rate_provider import Provider
from tests.chaos.redis_server import RedisServer
from tests.integration.cli_process import COMMAND, environment

ROOT = Path(__file__).parents[2]
FAULTS_AFTER = 1.5
"""Faults begin when this many windows have passed, and are one window apart."""


def client(url: str, count: int, name: str) -> None:
    """One client process: submits jobs and waits for each of them. Prints the number of answers that are not fine."""
    wrong = 0
    for number in range(count):
        body = {"user_id": name, "feature_name": "llm", "input_data": {"n": number}}
        request = urllib.request.Request(
            f"{url}/api/v1/jobs",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Prefer": "wait=300"},
        )
        with urllib.request.urlopen(request, timeout=330) as answer:
            job = json.load(answer)
        wrong += job["status"] != "COMPLETED" or bool(job.get("attempts"))
    print(wrong)


class System:
    def __init__(self, folder: Path, options: argparse.Namespace, database_url: str) -> None:
        self.options = options
        self.redis = RedisServer(folder)
        env = environment({"DATABASE_URL": database_url, "REDIS_URL": self.redis.url})
        self.log = folder / "arrivals"
        port = free_port()
        numbers = (port, options.requests, options.per, options.seconds, self.log)
        command = [sys.executable, "-m", "tests.chaos.rate_provider", *map(str, numbers)]
        self.provider = Process("provider", command, cwd=ROOT, env=env, log=folder / "provider.log")
        config = folder / "fairlead.toml"
        config.write_text(
            f"[services.llm]\nlimit = {options.limit}\nurl = 'http://127.0.0.1:{port}/call'\nlease_ttl = 3\n"
            f"rate = {{ requests = {options.requests}, per = {options.per} }}\n",
            encoding="utf-8",
        )
        self.provider.start()
        until_listening(self.provider, port)
        self.urls: list[str] = []
        self.processes: list[Process] = []
        for number in range(options.gateways):
            port = free_port()
            self._add(folder, config, env, f"api{number}", "api", "--port", str(port))
            self.urls.append(f"http://127.0.0.1:{port}")
            until_listening(self.processes[-1], port)
        self._add(folder, config, env, "manager", "manager")
        for number in range(options.workers):
            self._add(folder, config, env, f"worker{number}", "worker")

    def _add(self, folder: Path, config: Path, env: dict[str, str], name: str, command: str, *options: str) -> None:
        line = [*COMMAND, command, "--config", str(config), *options]
        process = Process(name, line, cwd=folder, env=env, log=folder / f"{name}.log")
        process.start()
        self.processes.append(process)

    def ask(self, path: str, method: str = "GET", body: object = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.urls[0] + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def fault(self, number: int) -> str:
        if number == 0:
            self.redis.ask("FLUSHALL")
            return "FLUSHALL"
        if number == 1:
            self.processes[-1].kill()
            self.processes[-1].start()
            return "killed a worker, and started it again"
        self.ask("/admin/services/llm/limit", "PUT", {"limit": max(1, self.options.limit // 2)})
        return "halved the limit"

    def arrivals(self) -> Provider:
        """Stop the provider, and return what it has counted."""
        self.provider.signal(signal.SIGINT)
        self.provider.wait()
        refused, *arrivals = self.log.read_text(encoding="utf-8").splitlines()
        seen = Provider(self.options.requests, self.options.per)
        seen.refused, seen.arrivals = int(refused), [float(each) for each in arrivals]
        return seen

    def close(self) -> None:
        for process in [*self.processes, self.provider, self.redis.process]:
            process.close()


def run(system: System) -> int:
    options = system.options
    each, more = divmod(options.calls, options.clients)
    clients = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.rates", "--client", url, str(each + (number < more)), f"user-{number}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for number, url in zip(range(options.clients), itertools.cycle(system.urls), strict=False)
    ]
    began = time.monotonic()
    for number in range(0 if options.calm else 3):
        time.sleep(max(0.0, began + (FAULTS_AFTER + number) * options.per - time.monotonic()))
        print(f"{time.monotonic() - began:6.1f} s  {system.fault(number)}", flush=True)
    wrong = sum(int(each.communicate(timeout=600)[0] or options.calls) for each in clients)
    seen = system.arrivals()
    took = seen.arrivals[-1] - seen.arrivals[0]
    print(
        f"{len(seen.arrivals)} calls of {options.calls} jobs in {took:.1f} s; at most {seen.most()} of "
        f"{options.requests} in any {options.per:g} s; {seen.refused} x 429; {wrong} jobs with errors; "
        f"{100 * seen.used():.1f} % of the rate used"
    )
    return int(bool(seen.refused) or seen.most() > options.requests or seen.used() < 0.95)


def main() -> int:
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {"calls": 500, "clients": 20, "gateways": 4, "workers": 3, "requests": 50, "limit": 40}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--per", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=0.05, help="how long a call takes")
    parser.add_argument("--calm", action="store_true", help="without faults")
    options = parser.parse_args()
    servers.postgres_url()
    database_url = asyncio.run(servers.new_database())
    folder = Path(tempfile.mkdtemp(prefix="fairlead-rates-"))
    system = System(folder, options, database_url)
    try:
        failed = run(system)
    finally:
        system.close()
        asyncio.run(servers.drop_database(database_url))
    if not failed:
        shutil.rmtree(folder)
    return failed


if __name__ == "__main__":
    sys.exit(main())
