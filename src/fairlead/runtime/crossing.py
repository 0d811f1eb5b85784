"""Between processes: events of watched jobs, that a job has ended, and that a handler is to stop.

A job's events travel on the channel `ws:{job_id}`, and only while somebody listens to it, here or anywhere. That a job
has ended is told to all, many jobs in one message: whoever waits for one looks it up. Any message may be lost; readers
look at the truth now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import orjson

from fairlead.dispatch.port import Bus
from fairlead.errors import Unavailable
from fairlead.runtime import events
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Event, Hub

log = logging.getLogger(__name__)

JOB = "ws:"
WATCHING, ENDED, STOP = "fairlead:watching", "fairlead:ended", "fairlead:stop"
LOOK_EVERY = 1.0


class Crossing:
    def __init__(self, bus: Bus, hub: Hub, clock: Clock, stop_job: Callable[[str, int], None]) -> None:
        self._bus = bus
        self._hub = hub
        self._clock = clock
        self._stop_job = stop_job
        self._process = uuid4().hex
        self._ended: list[str] = []
        self._looker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._bus.start([WATCHING, ENDED, STOP], self._heard)
        self._hub.on_event = self._send
        self._hub.on_watch = self._watch
        self._hub.on_unwatch = lambda job_id: self._bus.unlisten(JOB + job_id)
        for job_id in self._hub.watched_here():
            self._watch(job_id)
        self._looker = asyncio.get_running_loop().create_task(self._look(), name="fairlead-watched")

    async def close(self) -> None:
        if self._looker is not None:
            self._looker.cancel()
        self._hub.on_event = lambda event: None
        self._hub.on_watch = self._hub.on_unwatch = lambda job_id: None
        await self._bus.close()

    # ------------------------------------------------------------ said

    def ended(self, job_id: str) -> None:
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell_ended)
        self._ended.append(job_id)

    def stop(self, job_id: str, run: int) -> None:
        self._bus.send(STOP, f"{job_id} {run}".encode())

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        self._bus.send(ENDED, " ".join(ended).encode())

    def _send(self, event: Event) -> None:
        self._bus.send(JOB + event.job_id, orjson.dumps({**event.as_dict(), "process": self._process}))

    def _watch(self, job_id: str) -> None:
        self._bus.listen(JOB + job_id)
        self._bus.send(WATCHING, job_id.encode())

    async def _look(self) -> None:
        """Who listens, as the server itself knows it: forgets those who are gone, finds those who were not heard."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                channels = await self._bus.listened(JOB + "*")
            except Unavailable:
                continue
            self._hub.elsewhere = {channel.removeprefix(JOB) for channel in channels}

    # ------------------------------------------------------------ heard

    def _heard(self, channel: str, message: bytes) -> None:
        try:
            self._take(channel, message)
        except Exception:
            log.warning("a message on %s was not understood", channel, exc_info=True)

    def _take(self, channel: str, message: bytes) -> None:
        if channel == ENDED:
            for job_id in filter(self._hub.is_watched_here, message.decode().split()):
                self._hub.tell(Event(events.ENDED, job_id, self._clock.now(), "the job has ended"))
        elif channel == STOP:
            job_id, run = message.decode().split()
            self._stop_job(job_id, int(run))
        elif channel == WATCHING:
            self._hub.elsewhere.add(message.decode())
        else:
            said: dict[str, Any] = orjson.loads(message)
            if said.pop("process", None) != self._process:
                self._hub.tell(Event.of_dict(said))
