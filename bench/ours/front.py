"""The app behind the benchmark of the OpenAI front: one upstream, with its defaults."""

from __future__ import annotations

import os

from fairlead import Config, Fairlead, Settings
from fairlead.domain.config import ServiceConfig

UPSTREAM = ServiceConfig(openai=os.environ["BENCH_UPSTREAM"], limit=1000)

app = Fairlead(
    Settings(
        Config(services={"upstream": UPSTREAM}),
        os.environ["BENCH_DATABASE_URL"],
        redis_url=os.environ.get("BENCH_REDIS_URL") or None,
    )
)
