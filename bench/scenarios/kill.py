"""SIGKILL of a worker half a second into a job of 5 s, with a new worker at once and all defaults: when does the job
run again? All systems are measured side by side, since they only wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench import handlers
from bench.progress import say
from bench.servers import Servers
from bench.sizes import Sizes
from bench.system_run import Broken, Stage
from bench.systems import Known


def kill(
    systems: Sequence[Known], servers: Servers, sizes: Sizes, keep: Callable[[str, str, float], None]
) -> dict[str, str]:
    """`keep` takes the system first. Returns the systems whose worker could not be killed during a job, and why."""
    servers.fresh()
    killed: dict[Stage, int] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        for known in systems:
            try:
                stage = stack.enter_context(Stage(known, servers, beside_others=True))
                killed[stage] = kill_one(stage)
            except Exception as error:  # the others can still be measured
                failed[known.name] = f"{type(error).__name__}: {error}"
                say(f"kill {known.name} failed: {error}")
        until = time.monotonic() + sizes.kill_s
        while time.monotonic() < until and any(handlers.started(stage.folder) < 2 for stage in killed):
            time.sleep(0.1)
        for stage, at in killed.items():
            again = handlers.starts(stage.folder)[1:]
            if again:
                keep(stage.known.name, "s until it runs again", (again[0][1] - at) / 1e9)
            else:
                keep(stage.known.name, "not within s", sizes.kill_s)
    return failed


def kill_one(stage: Stage) -> int:
    """When, in nanoseconds since the epoch."""
    stage.ask("one", kind="long", number=1, user="ada")
    stage.start_workers("default")
    until = time.monotonic() + 30
    while not handlers.started(stage.folder):
        if time.monotonic() > until:
            raise Broken(f"the job never started: {stage.last_words()}")
        time.sleep(0.02)
    time.sleep(0.5)
    stage.kill_workers()
    at = time.time_ns()
    stage.start_workers("default")
    return at
