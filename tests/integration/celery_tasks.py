"""A team's Celery app, as the workers of the tests run it. The environment has the URL of its Redis."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery, Task

from fairlead import Permanent, Retry

_redis = os.environ["TEAM_REDIS_URL"]
app = Celery("team", broker=_redis, backend=os.environ.get("TEAM_RESULTS", _redis))
app.conf.update(task_default_queue="team", worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)


def board() -> redis.Redis:
    """The Redis in which tasks leave messages for the tests, and on which they wait."""
    return redis.Redis.from_url(os.environ["TEAM_REDIS_URL"])


@app.task(name="team.caption", shared=False, bind=True)
def caption(self: Task, prompt: str = "", loud: bool = False) -> dict[str, Any]:
    about = self.request.fairlead
    return {"caption": prompt.upper() if loud else prompt, "user": about["user_id"], "job": about["job_id"]}


@app.task(name="team.enveloped", shared=False)
def enveloped(meta: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"meta": meta, "payload": payload}, "metrics": {"model": "v2"}}


@app.task(name="team.failing", shared=False)
def failing(how: str, until: int = 99) -> str:
    with board() as client:
        tries = client.incr(f"tries:{how}")
    if tries >= until:
        return f"after {tries} tries"
    match how:
        case "permanent":
            raise Permanent("there is no image")
        case "retry":
            raise Retry("the model is loading")
        case "large":
            return "x" * 5000
        case "no json":
            return object()  # type: ignore[return-value]
        case "own kind":
            raise Unusual(how)
    raise ValueError(f"no {how}")


class Unusual(Exception):
    """A class that only this module knows."""


@app.task(name="team.ignored", shared=False, ignore_result=True)
def ignored() -> str:
    return "kept all the same"


@app.task(name="team.progressing", shared=False, bind=True)
def progressing(self: Task) -> str:
    self.update_state(state="PROGRESS", meta={"current": 1, "total": 4, "message": "a quarter", "layer": 7})
    with board() as client:
        client.blpop(["go on"], timeout=60)
    return "all of it"


@app.task(name="team.held", shared=False, bind=True)
def held(self: Task, name: str) -> str:
    """Reports its start, and ends when the test releases it."""
    with board() as client:
        client.rpush(f"begun:{name}", f"{self.request.id} {os.getpid()}")
        client.blpop([f"go:{name}"], timeout=120)
    return f"{name} by {self.request.id}"


@app.task(name="team.counted", shared=False)
def counted(seconds: float) -> None:
    """Records the largest number of concurrent calls."""
    with board() as client:
        inside = client.incr("inside")
        client.zadd("most", {"most": inside}, gt=True)
        time.sleep(seconds)
        client.decr("inside")


@app.task(name="team.talking", shared=False, bind=True)
def talking(self: Task) -> None:
    """Emits its output through its progress, and goes on after each part when the test allows it."""
    so_far = ""
    for word in ("Hello", " there", "!"):
        so_far += word
        self.update_state(state="PROGRESS", meta={"output": so_far})
        with board() as client:
            client.blpop(["go on"], timeout=60)
