"""Queries the database a few times a second for the number of open jobs, and whether any job moves."""

from __future__ import annotations

import asyncio
import time

from tests.chaos.database import GONE, Database
from tests.chaos.load import Load

EVERY = 0.2


class Watch:
    def __init__(self, database: Database, load: Load) -> None:
        self._database = database
        self._load = load
        self.marks = (0, 0, 0)
        self.changed_at = time.monotonic()

    @property
    def open(self) -> int:
        return self.marks[0]

    @property
    def ended(self) -> int:
        return self.marks[1]

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        try:
            marks = await self._database.marks()
        except GONE:
            return
        if marks != self.marks:
            self.marks, self.changed_at = marks, time.monotonic()
        self._load.open_jobs = self.open
