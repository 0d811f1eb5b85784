"""Sample data of every kind: jobs in every state, a batch, dead letters, a pause, a changed limit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import cycle

from fairlead.store.port import RegisterProcess
from tests.browser.gateway_site import Stage
from tests.browser.xss import CORPUS

BATCH = "spring survey"


@dataclass
class SampleData:
    """The ids of the sample data, by kind."""

    running: str
    waiting: str
    completed: str
    two_steps: str
    scheduled: str
    cancelled: str
    failed: str
    resumable: str
    retrying: str
    batch: str
    schedule: str


async def add_sample_data(stage: Stage) -> SampleData:
    """The data is static: waiting jobs wait behind a call that lasts until the end of the test."""
    app = stage.app
    await app.webhooks.create("https://receiver.invalid/hooks", ["job.completed"], user_id="cyn")
    schedule = await app.schedules.create(
        "echo", cron="0 6 * * *", timezone="Europe/Berlin", user_id="cyn", name="news"
    )
    await app.schedules.run(schedule.id)
    running = await stage.submit("gated", "ada")
    await stage.running(running)
    found = SampleData(
        running=running,
        waiting=await stage.submit("gated", "bob", priority="low"),
        completed=await stage.submit("echo", "ada", metadata={"order": 17}),
        two_steps=await stage.submit("echo_then_shout", "cyn"),
        scheduled=await stage.submit("echo", "dee", delay=3600),
        cancelled=await stage.submit("echo", "dee", delay=3600),
        failed=await stage.submit("broken", "eve"),
        resumable=await stage.submit("flaky", "eve"),
        retrying=await stage.submit("gpu", "fay"),
        batch=(
            await app.submit_batch(
                [{"custom_id": f"q{n}", "feature_name": "broken" if n == 3 else "echo"} for n in range(4)],
                user_id="ada",
                name=BATCH,
            )
        ).id,
        schedule=schedule.id,
    )
    await stage.submit("gated", "cyn", priority="high")
    await stage.submit("gated_then_whisper", "ada")
    await app.cancel(found.cancelled)
    await app.set_limit("shout", 3, who="ops")
    await app.pause("whisper", who="ops")
    await stage.ended(found.completed, found.two_steps, found.failed, found.resumable)
    await stage.reaches(found.retrying, "RETRYING")
    await app.wait_batch(found.batch, timeout=15)
    return found


@dataclass
class Poison:
    """Jobs in which every text is one of the corpus."""

    everything: str
    running: str
    completed: list[str]
    failed: list[str]
    batch: str
    first_key: str


async def poison(stage: Stage) -> Poison:
    """Each text of the corpus in every field that a page shows: as user, input, metadata, result, error, progress, name
    of a batch, an item, a worker, a key, and as the actor of an audit row."""
    app = stage.app
    whole = {text: text for text in CORPUS}
    admin = await app.create_key("admin", name=CORPUS[0][:100])
    everything = await stage.submit("echo", CORPUS[0], input_data=whole, metadata=whole)
    running = await stage.submit("confiding", CORPUS[1], input_data={"text": CORPUS[1]})
    completed = [await stage.submit("echo", text, input_data={text: text}, metadata={text: [text]}) for text in CORPUS]
    failed = [await stage.submit("complaining", text, input_data={"text": text}) for text in CORPUS]
    items = [{"custom_id": text, "input_data": {"text": text}} for text in CORPUS]
    batch = await app.submit_batch(items, user_id=CORPUS[2], name=CORPUS[3], feature_name="complaining")
    for text in CORPUS:
        await app.submit_batch([{"feature_name": "echo"}], user_id=text, name=text, metadata={text: text})
        await stage.submit("confiding", text, input_data={"text": text})
        await app.create_key("service", name=text[:100], who=text)
    for text, act in zip(CORPUS, cycle((app.pause, app.unpause)), strict=False):
        await act("whisper", who=text)
    await _announce(stage)
    await stage.ended(everything, *completed, *failed)
    await app.wait_batch(batch.id, timeout=15)
    await stage.running(running)
    return Poison(everything, running, completed, failed, batch.id, admin.text)


async def _announce(stage: Stage) -> None:
    """Register a worker for each text in the database."""
    own = (await stage.app.processes())[0]
    strangers = [
        replace(own, name=text, host=text, version=text, pid=n, roles=("worker",), services=(text,))
        for n, text in enumerate(CORPUS)
    ]
    await asyncio.gather(*(stage.app._runtime.group_commit.write(RegisterProcess(each)) for each in strangers))
