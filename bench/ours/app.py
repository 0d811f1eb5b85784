"""The Fairlead app of the benchmark, with its defaults: stored results, fairness, limits, fences."""

from __future__ import annotations

import os

from bench import handlers
from bench.system_port import LIMITS, Job
from fairlead import Call, Config, Fairlead, Settings, Submission

SERVICES = {"work": 1000, "sleep": 500, "narrow": 4}
SERVICE_OF = {"noop": "work", "stamp": "work", "long": "work", "sleep": "sleep", "turn": "narrow"}

app = Fairlead(
    Settings(Config(), os.environ["BENCH_DATABASE_URL"], redis_url=os.environ.get("BENCH_REDIS_URL") or None)
)


async def work(call: Call) -> dict[str, int]:
    await handlers.run_async(call.params["kind"], call.params["number"])
    return {"number": call.params["number"]}


async def step(call: Call) -> dict[str, int]:
    last = call.step_index == call.total_steps - 1
    await handlers.run_async("last" if last else "step", call.params["number"])
    return {"number": call.params["number"]}


for name, limit in SERVICES.items():
    app.service(name, limit=limit)(work)
for number, limit in enumerate(LIMITS):
    app.service(f"step{number}", limit=limit)(step)
app.pipeline("steps", [f"step{number}" for number in range(len(LIMITS))])


async def submit(job: Job) -> None:
    await app.submit(SERVICE_OF[job.kind], {"kind": job.kind, "number": job.number}, user_id=job.user)


async def submit_many(jobs: list[Job]) -> None:
    await app.submit_many(
        [Submission(SERVICE_OF[job.kind], {"kind": job.kind, "number": job.number}, job.user) for job in jobs]
    )


async def submit_steps(number: int) -> None:
    await app.submit("steps", {"number": number}, user_id=f"user-{number % 20}")
