"""An existing Celery app. Nothing in it knows Fairlead: `celery -A tasks worker`."""

from __future__ import annotations

import os

from celery import Celery

REDIS = os.environ.get("CELERY_BROKER_URL", "redis://127.0.0.1:6379/1")

app = Celery("tasks", broker=REDIS, backend=os.environ.get("CELERY_RESULT_BACKEND", REDIS))


@app.task
def render(scene: str, quality: str = "draft") -> dict[str, str]:
    return {"scene": scene, "picture": f"{scene} in {quality} quality"}
