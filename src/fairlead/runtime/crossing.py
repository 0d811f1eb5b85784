"""Between processes: events of watched jobs, that a job has ended, that a handler is to stop, and whose turn it is.

A job's events travel on the channel `ws:{job_id}` for those who watch it, and on `ws:user:{user_id}` for those who
follow its user, and only while somebody listens there, here or anywhere. That a job has ended is told to all, many jobs
in one message: whoever waits for one looks it up. Any message may be lost: what was lost with a connection is looked up
when the next one stands, and the `Lookout` looks at the truth now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import asdict
from typing import Any, Protocol
from uuid import uuid4

import orjson

from fairlead.dispatch.port import Bus, Lease
from fairlead.domain.turns import is_turn
from fairlead.errors import Unavailable
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import Event, Hub

log = logging.getLogger(__name__)

TOPIC = "ws:"
WATCHING, ENDED, STOP = "fairlead:watching", "fairlead:ended", "fairlead:stop"
OFFERED, ADOPTED = "fairlead:turn:offered:", "fairlead:turn:adopted:"
"""Followed by the name of the process that is to hear it."""
ECHO = "fairlead:echo:"
LOOK_EVERY = 1.0
SETTLED_AFTER = 3.0
# Many thousand channels take a while to list: that may have this share of the event loop's time.
SHARE = 0.02
TOPICS_A_MESSAGE = 500
ECHO_EVERY = 0.1


class Post(Protocol):
    """What a process does about messages that are not about events."""

    @property
    def name(self) -> str: ...

    def stop_job(self, job_id: str, run: int | None = None) -> None: ...

    def turn_offered(self, shard: str, lease: Lease) -> None:
        """A slot was granted to a turn whose caller is here."""
        ...

    def turn_adopted(self, turn_id: str) -> None:
        """Its caller has gone to another process."""
        ...


class Crossing:
    def __init__(self, bus: Bus, hub: Hub, clock: Clock, post: Post) -> None:
        self._bus = bus
        self._hub = hub
        self._clock = clock
        self._post = post
        self._process = uuid4().hex
        self._ended: list[str] = []
        self._new: set[str] = set()
        """Topics that were heard of while the server was asked for all of them."""
        self._looker: asyncio.Task[None] | None = None
        self._settled: asyncio.TimerHandle | None = None
        self._echoes: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        own = [f"{kind}{self._post.name}" for kind in (OFFERED, ADOPTED)]
        await self._bus.start([WATCHING, ENDED, STOP, *own], self._heard, self._began)
        self._hub.on_event = self._send
        self._hub.on_watch = self._watch
        self._hub.on_unwatch = lambda topic: self._bus.unlisten(TOPIC + topic)
        for topic in self._hub.topics_here():
            self._watch(topic)
        self._looker = asyncio.get_running_loop().create_task(self._look(), name="fairlead-watched")

    async def close(self) -> None:
        if self._looker is not None:
            self._looker.cancel()
        if self._settled is not None:
            self._settled.cancel()
        self._hub.on_event = lambda topic, event: None
        self._hub.on_watch = self._hub.on_unwatch = lambda topic: None
        await self._bus.close()

    # ------------------------------------------------------------ said

    def ended(self, job_id: str) -> None:
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell_ended)
        self._ended.append(job_id)

    def stop(self, job_id: str, run: int) -> None:
        self._bus.send(STOP, f"{job_id} {run}".encode())

    def offer_turn(self, process: str, shard: str, lease: Lease) -> None:
        self._bus.send(OFFERED + process, orjson.dumps([shard, asdict(lease)]))

    def adopt_turn(self, process: str, turn_id: str) -> None:
        self._bus.send(ADOPTED + process, turn_id.encode())

    async def echo(self) -> float:
        """Seconds until this process heard what it says to itself. Whoever calls has a limit to its patience."""
        loop, channel = asyncio.get_running_loop(), ECHO + uuid4().hex
        began, heard = loop.time(), asyncio.Event()
        self._echoes[channel] = heard
        self._bus.listen(channel)
        try:
            while not heard.is_set():
                # Again and again: the first may be said before the server knows that we listen.
                self._bus.send(channel, b"")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ECHO_EVERY):
                        await heard.wait()
        finally:
            self._bus.unlisten(channel)
            del self._echoes[channel]
        return loop.time() - began

    def _tell_ended(self) -> None:
        ended, self._ended = self._ended, []
        self._bus.send(ENDED, " ".join(ended).encode())

    def _send(self, topic: str, event: Event) -> None:
        self._bus.send(TOPIC + topic, orjson.dumps({**event.as_dict(), "process": self._process}))

    def _watch(self, topic: str) -> None:
        self._bus.listen(TOPIC + topic)
        self._bus.send(WATCHING, topic.encode())

    def _began(self) -> None:
        """A connection stands: nobody sent what nobody seemed to listen to, and what was sent was not heard."""
        topics = self._hub.topics_here()
        for begin in range(0, len(topics), TOPICS_A_MESSAGE):
            self._bus.send(WATCHING, "\n".join(topics[begin : begin + TOPICS_A_MESSAGE]).encode())
        self._missed()
        # Others may have lost their connection too, and tell us nothing until they know that we listen again.
        if self._settled is not None:
            self._settled.cancel()
        self._settled = asyncio.get_running_loop().call_later(SETTLED_AFTER, self._missed)

    def _missed(self) -> None:
        for topic in self._hub.topics_here():
            self._hub.missed(topic, self._clock.now())

    async def _look(self) -> None:
        """Who listens, as the server itself knows it: forgets those who are gone, finds those who were not heard."""
        timer = asyncio.get_running_loop().time
        pause = LOOK_EVERY
        while True:
            await asyncio.sleep(pause)
            begun, self._new = timer(), set()
            try:
                channels = await self._bus.listened(TOPIC + "*")
            except Unavailable:
                continue
            self._hub.elsewhere = self._new.union(channel.removeprefix(TOPIC) for channel in channels)
            pause = max(LOOK_EVERY, (timer() - begun) / SHARE)

    # ------------------------------------------------------------ heard

    def _heard(self, channel: str, message: bytes) -> None:
        if channel.startswith(ECHO):
            if channel in self._echoes:
                self._echoes[channel].set()
            return
        try:
            self._take(channel, message)
        except Exception:
            log.warning("a message on %s was not understood", channel, exc_info=True)

    def _take(self, channel: str, message: bytes) -> None:
        if channel == ENDED:
            for job_id in message.decode().split():
                if self._hub.is_watched_here(job_id):
                    self._hub.ended(job_id, self._clock.now())
                if is_turn(job_id):
                    self._post.stop_job(job_id)
        elif channel == STOP:
            job_id, run = message.decode().split()
            self._post.stop_job(job_id, int(run))
        elif channel.startswith(OFFERED):
            shard, lease = orjson.loads(message)
            self._post.turn_offered(shard, Lease(**lease))
        elif channel.startswith(ADOPTED):
            self._post.turn_adopted(message.decode())
        elif channel == WATCHING:
            topics = message.decode().split("\n")
            self._hub.elsewhere.update(topics)
            self._new.update(topics)
        else:
            said: dict[str, Any] = orjson.loads(message)
            if said.pop("process", None) != self._process:
                self._hub.tell_on(channel.removeprefix(TOPIC), Event.of_dict(said))
