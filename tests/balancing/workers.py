"""Celery workers in processes of their own, and helpers that wait for them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from fairlead.celery import LoadBalancer
from tests.balancing.site import BALANCER_VARIABLE, BROKER_VARIABLE
from tests.integration.cli_fork import Forked

ROOT = Path(__file__).parents[2]
PATIENCE_S = 100.0
_numbers = itertools.count()


def until(reached: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
    """Poll: what another process does gives no signal here."""
    end = time.monotonic() + patience_s
    while not reached():
        if time.monotonic() > end:
            raise AssertionError(f"in vain: {what}")
        time.sleep(0.02)


def loads(balancer: LoadBalancer) -> tuple[int, int]:
    """Pending and running tasks in all queues."""
    counted = balancer.get_all_queue_loads().values()
    return sum(load.pending for load in counted), sum(load.running for load in counted)


def until_loads_are(balancer: LoadBalancer, pending: int, running: int) -> None:
    until(lambda: loads(balancer) == (pending, running), f"{pending} pending and {running} running")


def messages(balancer: LoadBalancer, client: redis.Redis) -> int:
    """Messages in the queues, and those that workers have not acknowledged."""
    return sum(client.llen(name) for name in balancer.queue_names) + client.hlen("unacked")


def until_everything_is_done(balancer: LoadBalancer, client: redis.Redis) -> None:
    until(lambda: not messages(balancer, client), "all messages are consumed")
    until_loads_are(balancer, 0, 0)


class Worker:
    """A worker that has registered itself."""

    def __init__(self, balancer: LoadBalancer, url: str, *options: str, **settings: Any) -> None:
        self.name = f"w{next(_numbers)}@test"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = Forked(
            ["-m", "celery", "-A", "tests.balancing.site", "worker", "-n", self.name, "-l", "warning",
             "--without-gossip", "--without-mingle", *options],
            cwd=ROOT, stdout=self._log, stderr=self._log,
            env={**os.environ, BROKER_VARIABLE: url, BALANCER_VARIABLE: json.dumps(settings)},
        )  # fmt: skip
        try:
            until(lambda: self._has_registered(balancer), "the worker is ready")
        except BaseException:
            print(self.log)
            self.kill()
            self._log.close()
            raise

    def _has_registered(self, balancer: LoadBalancer) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the worker ended:\n{self.log}")
        # However long ago: on a busy machine the record may have expired by now.
        return any(worker.name == self.name for worker in balancer._counts.workers())

    def until_it_logs(self, text: str) -> None:
        until(lambda: text in self.log, f"the worker logs {text!r}")

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """Kill the worker and its children, as a power loss would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self.kill()
        self._log.close()


@contextlib.contextmanager
def worker(balancer: LoadBalancer, url: str, *options: str, **settings: Any) -> Iterator[Worker]:
    one = Worker(balancer, url, *options, **settings)
    try:
        yield one
    except BaseException:
        print(one.log)
        raise
    finally:
        one.stop()
