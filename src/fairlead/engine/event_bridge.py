"""Carries messages between processes: events of watched jobs, notices that jobs have ended, requests to stop a handler,
and offers of slots to turns.

The events of a job are published on two channels, `ws:{job_id}` for watchers of the job and `ws:user:{user_id}` for
followers of its user; the chunks that it emits are published on a third, `ws:output:{job_id}`. Nothing is published on
a channel that no process has subscribed to. Notices of ended jobs are broadcast to all processes, many in one message;
a process with callers that wait for such a job reads the job from the database. Any message may be lost. After a
reconnect every topic is therefore marked as possibly stale, and the event poller reads the database at intervals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from dataclasses import asdict
from typing import Any, Protocol
from uuid import uuid4

import orjson

from fairlead.dispatch.messages import PubSub
from fairlead.dispatch.port import Lease
from fairlead.domain.events import Event, of_outsider
from fairlead.domain.turns import is_turn
from fairlead.engine.clock import Clock
from fairlead.engine.events import OUTPUT_OF, USER, Hub
from fairlead.errors import Unavailable
from fairlead.pacing import DutyCycle

log = logging.getLogger("fairlead.event_bridge")

TOPIC = "ws:"
WATCHING, ENDED, STOP = "fairlead:watching", "fairlead:ended", "fairlead:stop"
OFFERED, ADOPTED = "fairlead:turn:offered:", "fairlead:turn:adopted:"
"""Prefixes of channels; the name of the receiving process follows."""
ECHO = "fairlead:echo:"
PING = "fairlead:alive:"
"""Prefix of a channel; the name of a process follows. That process answers on the channel that the message names."""
LOOK_EVERY = 1.0
SETTLED_AFTER = 3.0
LISTING = DutyCycle(share=0.02, every=LOOK_EVERY)
"""How often channels are listed. Listing many thousand channels keeps the event loop busy for a while."""
TOPICS_PER_MESSAGE = 500
MAX_OUTSIDE = 16_384
"""The maximal size in bytes of a message that another program publishes for the readers of a job."""
ECHO_EVERY = 0.1


class MessageHandler(Protocol):
    """Handles the messages that are not events. Implemented by the node."""

    @property
    def name(self) -> str: ...

    def stop_job(self, job_id: str, run: int | None = None) -> None: ...

    def turn_offered(self, shard: str, lease: Lease) -> None:
        """Called when another process offers a slot to a caller in this process."""
        ...

    def turn_adopted(self, turn_id: str) -> None:
        """Called when another process has adopted a turn that this process owned."""
        ...


class EventBridge:
    def __init__(self, bus: PubSub, hub: Hub, clock: Clock, handler: MessageHandler) -> None:
        self._bus = bus
        self._hub = hub
        self._clock = clock
        self._handler = handler
        self._process = uuid4().hex
        self._ended: list[str] = []
        self._new: set[str] = set()
        """The topics that were announced while the server was listing all topics."""
        self._lister: asyncio.Task[None] | None = None
        self._stale_timer: asyncio.TimerHandle | None = None
        self._echoes: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        own = [f"{kind}{self._handler.name}" for kind in (OFFERED, ADOPTED, PING)]
        await self._bus.start([WATCHING, ENDED, STOP, *own], self._received, self._connected)
        self._hub.connect(self)
        for topic in self._hub.topics_here():
            self.watch(topic)
        self._lister = asyncio.get_running_loop().create_task(self._list_topics(), name="fairlead-watched")

    async def close(self) -> None:
        if self._lister is not None:
            self._lister.cancel()
        if self._stale_timer is not None:
            self._stale_timer.cancel()
        self._hub.disconnect()
        await self._bus.close()

    # ------------------------------------------------------------ sending

    def ended(self, job_id: str) -> None:
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._send_ended)
        self._ended.append(job_id)

    def stop(self, job_id: str, run: int) -> None:
        self._bus.send(STOP, f"{job_id} {run}".encode())

    def offer_turn(self, process: str, shard: str, lease: Lease) -> None:
        self._bus.send(OFFERED + process, orjson.dumps([shard, asdict(lease)]))

    def adopt_turn(self, process: str, turn_id: str) -> None:
        self._bus.send(ADOPTED + process, turn_id.encode())

    async def echo(self) -> float:
        """Measure how many seconds a message from this process to itself takes. The message may be lost, so call this
        with a timeout."""
        loop, channel = asyncio.get_running_loop(), ECHO + uuid4().hex
        began, received = loop.time(), asyncio.Event()
        self._echoes[channel] = received
        self._bus.subscribe(channel)
        try:
            while not received.is_set():
                # Repeat the message: the first one may be sent before the subscription is active.
                self._bus.send(channel, b"")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ECHO_EVERY):
                        await received.wait()
        finally:
            self._bus.unsubscribe(channel)
            del self._echoes[channel]
        return loop.time() - began

    async def answering(self, processes: Collection[str], within: float) -> frozenset[str]:
        """The subset of `processes` whose event loop answers over the message bus within `within` seconds."""
        subscribed = {channel.removeprefix(PING) for channel in await self._bus.active_channels(PING + "*")}
        replies = {name: ECHO + uuid4().hex for name in processes if name in subscribed}
        answers = {name: asyncio.Event() for name in replies}
        self._echoes |= {channel: answers[name] for name, channel in replies.items()}
        try:
            for channel in replies.values():
                self._bus.subscribe(channel)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    while not all(answer.is_set() for answer in answers.values()):
                        for name, channel in replies.items():
                            self._bus.send(PING + name, channel.encode())
                        await asyncio.sleep(ECHO_EVERY)
        finally:
            for channel in replies.values():
                self._bus.unsubscribe(channel)
                del self._echoes[channel]
        return frozenset(name for name, answer in answers.items() if answer.is_set())

    def _send_ended(self) -> None:
        ended, self._ended = self._ended, []
        self._bus.send(ENDED, " ".join(ended).encode())

    def send(self, topic: str, event: Event) -> None:
        self._bus.send(TOPIC + topic, orjson.dumps({**event.as_dict(), "process": self._process}))

    def watch(self, topic: str) -> None:
        self._bus.subscribe(TOPIC + topic)
        self._bus.send(WATCHING, topic.encode())

    def unwatch(self, topic: str) -> None:
        self._bus.unsubscribe(TOPIC + topic)

    def _connected(self) -> None:
        """After a reconnect, announce the topics that are watched here, and mark every topic as possibly stale: events
        that were published while this process was not subscribed are lost."""
        topics = self._hub.topics_here()
        for begin in range(0, len(topics), TOPICS_PER_MESSAGE):
            self._bus.send(WATCHING, "\n".join(topics[begin : begin + TOPICS_PER_MESSAGE]).encode())
        self._missed()
        # Other processes may have lost their connection too, and publish nothing until they know our topics again.
        if self._stale_timer is not None:
            self._stale_timer.cancel()
        self._stale_timer = asyncio.get_running_loop().call_later(SETTLED_AFTER, self._missed)

    def _missed(self) -> None:
        for topic in self._hub.topics_here():
            self._hub.missed(topic, self._clock.now())

    async def _list_topics(self) -> None:
        """Update the set of topics that other processes watch, by listing the subscribed channels of the Redis server
        at intervals: remove topics without subscribers, and add topics whose announcement was lost."""
        timer = asyncio.get_running_loop().time
        pause = LOOK_EVERY
        while True:
            await asyncio.sleep(pause)
            began, self._new = timer(), set()
            try:
                channels = await self._bus.active_channels(TOPIC + "*")
            except Unavailable:
                continue
            self._hub.elsewhere = self._new.union(channel.removeprefix(TOPIC) for channel in channels)
            pause = LISTING.pause(timer() - began)

    # ------------------------------------------------------------ receiving

    def _received(self, channel: str, message: bytes) -> None:
        if channel.startswith(ECHO):
            if channel in self._echoes:
                self._echoes[channel].set()
            return
        try:
            self._handle(channel, message)
        except Exception:
            log.warning("a message on %s could not be handled", channel, exc_info=True)

    def _handle(self, channel: str, message: bytes) -> None:
        if channel == ENDED:
            for job_id in message.decode().split():
                if self._hub.is_watched_here(job_id):
                    self._hub.ended(job_id, self._clock.now())
                if is_turn(job_id):
                    self._handler.stop_job(job_id)
        elif channel == STOP:
            job_id, run = message.decode().split()
            self._handler.stop_job(job_id, int(run))
        elif channel.startswith(OFFERED):
            shard, lease = orjson.loads(message)
            self._handler.turn_offered(shard, Lease(**lease))
        elif channel.startswith(PING):
            if (reply_to := message.decode()).startswith(ECHO):
                self._bus.send(reply_to, b"")
        elif channel.startswith(ADOPTED):
            self._handler.turn_adopted(message.decode())
        elif channel == WATCHING:
            topics = message.decode().split("\n")
            self._hub.elsewhere.update(topics)
            self._new.update(topics)
        else:
            self._deliver(channel.removeprefix(TOPIC), message)

    def _deliver(self, topic: str, message: bytes) -> None:
        """Deliver an event to the readers of a topic in this process. The message comes from another Fairlead process,
        or from any program that publishes for a job, for example with `PUBLISH ws:{job_id} '{"type": "TEST"}'`. A
        message that this process published itself is ignored, since its readers here already have the event."""
        try:
            body: Any = orjson.loads(message)
            if isinstance(body, dict) and "process" in body:
                if body.pop("process") == self._process:
                    return
                event = Event.of_dict(body)
            elif len(message) > MAX_OUTSIDE or topic.startswith((USER, OUTPUT_OF)):
                raise ValueError(f"only messages for a job, of at most {MAX_OUTSIDE} bytes, are delivered")
            else:
                event = of_outsider(body, topic, self._clock.now())
        except (ValueError, KeyError, TypeError) as error:
            log.warning("ignored a message on %s%s: %s", TOPIC, topic, error)
            return
        self._hub.tell_on(topic, event)
