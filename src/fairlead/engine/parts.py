"""What the parts of a node share: the objects that all of them use (`EngineParts`), the rules in force, and the
interfaces through which they notify each other (signals).

Signals       received by the node, from parts that live as long as the app (the group commit, the transition writer)
NodeSignals   received by the node, from its shards
ShardSignals  received by a shard runtime, from its relay, workers, slot broker and loops

Each part gets the receiver of its signals as an argument of its constructor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fairlead.dispatch.port import Lease, Release, Unserved
from fairlead.domain.budgets import NO_BUDGETS, Budgets
from fairlead.domain.config import Config
from fairlead.domain.rules import EVERYTHING, Lanes, Rules
from fairlead.engine.clock import DatabaseClock
from fairlead.engine.events import Hub
from fairlead.engine.roles import Roles
from fairlead.executors.port import Executor
from fairlead.store.group_commit import GroupCommit
from fairlead.store.port import OutboxEntry, Store

if TYPE_CHECKING:
    from fairlead.artifacts.files import Files
    from fairlead.engine.heartbeat import Heartbeat
    from fairlead.engine.loop_runner import Loop
    from fairlead.engine.loops.schedules import NewJobs
    from fairlead.engine.output_writer import OutputWriter
    from fairlead.engine.shard_runtime import ShardRuntime
    from fairlead.engine.tracing import Tracing
    from fairlead.engine.transition_writer import TransitionWriter
    from fairlead.engine.turns.waiters import Waiters
    from fairlead.engine.webhooks.endpoints import EndpointUsers


class Signals(Protocol):
    def committed(self, entries: Sequence[OutboxEntry]) -> None:
        """Called when outbox rows were committed, before the callers of the commit get their outcomes."""
        ...

    def timer_set(self, moment: float) -> None:
        """Called when a row was written whose job will be due at `moment`."""
        ...

    def step_stopped(self, job_id: str, run: int) -> None:
        """Called when a running step was cancelled, has expired or was recovered. Its handler must stop, in whichever
        process it runs."""
        ...

    def job_ended(self, job_id: str) -> None:
        """Called when this process has written the end of a job."""
        ...

    def turn_wanted(self, service: str) -> None:
        """Called when the number of callers that wait for a turn of this service has changed."""
        ...


class NodeSignals(Protocol):
    def stop_job(self, job_id: str) -> None:
        """Stop the handler of this job, if it runs in this process."""
        ...

    def relay_elsewhere(self, entry: OutboxEntry) -> bool:
        """Called when an outbox entry reached the relay of a shard that the job's service has left. Returns True if the
        relay of another shard takes the entry."""
        ...

    def offer_turn(self, process: str, shard: str, lease: Lease) -> bool:
        """Offer the slot of a turn to the process of its caller. Returns False if there are no other processes."""
        ...

    def turn_adopted_here(self, from_process: str, turn_id: str) -> None:
        """Called when this process has become the owner of a turn that another process owned."""
        ...

    def rules_outdated(self) -> None:
        """Called when the database may have newer rules or epochs than this process."""
        ...

    def unserved(self) -> Unserved:
        """The regions that no live worker claims for, as far as this process knows."""
        ...

    def other_shards(self, shard: ShardRuntime) -> Sequence[ShardRuntime]: ...


class ShardSignals(Protocol):
    def jobs_offered(self) -> None:
        """Called when the relay has added jobs to the queue."""
        ...

    def job_found_ended(self, job_id: str) -> None:
        """Called when the outbox shows that a job has ended, in this process or another."""
        ...

    def relay_elsewhere(self, entry: OutboxEntry) -> bool: ...

    def turn_granted(self, lease: Lease) -> None:
        """Called when a worker has claimed a slot for a turn. The slot must be passed to the turn's caller."""
        ...

    def lease_acquired(self) -> None:
        """Called when this process is about to acquire a lease: the heartbeat must run from now on."""
        ...

    def releasing(self, releases: Sequence[Release]) -> None:
        """Called before these slots are released on this shard."""
        ...

    def offer_turn(self, process: str, lease: Lease) -> bool: ...

    def turn_adopted_here(self, from_process: str, turn_id: str) -> None: ...

    def rules_outdated(self) -> None: ...

    async def configure_others(self) -> None:
        """Send the other shards their rules, so that they refuse steps that were offered under older rules."""
        ...


class RunningNode:
    """Forwards signals to the node while this process runs one. Without a node, signals are dropped: processes with a
    node read the outbox and the timers from the database."""

    def __init__(self) -> None:
        self._node: Signals | None = None

    def attach(self, node: Signals) -> None:
        self._node = node

    def detach(self) -> None:
        self._node = None

    def committed(self, entries: Sequence[OutboxEntry]) -> None:
        if self._node is not None:
            self._node.committed(entries)

    def timer_set(self, moment: float) -> None:
        if self._node is not None:
            self._node.timer_set(moment)

    def step_stopped(self, job_id: str, run: int) -> None:
        if self._node is not None:
            self._node.step_stopped(job_id, run)

    def job_ended(self, job_id: str) -> None:
        if self._node is not None:
            self._node.job_ended(job_id)

    def turn_wanted(self, service: str) -> None:
        if self._node is not None:
            self._node.turn_wanted(service)


class RulesRef:
    """A shared reference to the rules in force. Rules are replaced as a whole and never changed in place. The reference
    of a shard holds the rules of the services on that shard, and the `lanes` whose steps wait there."""

    __slots__ = ("current", "executed", "lanes")

    def __init__(self, rules: Rules | None = None, lanes: Lanes = EVERYTHING) -> None:
        self.current = Rules({}) if rules is None else rules
        self.lanes = lanes
        self.executed: frozenset[str] = frozenset()
        """The services that this process can execute."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    process: str
    """The name of this process."""
    config: Config
    roles: Roles
    store: Store
    group_commit: GroupCommit
    recorder: TransitionWriter
    executors: Mapping[str, Executor]
    """The executors of the services that this process can execute, by service."""
    hub: Hub
    clock: DatabaseClock
    waiters: Waiters
    outputs: OutputWriter | None = None
    """None: the chunks that steps emit only become their results."""
    files: Files | None = None
    """None: there is no object store, and large results stay in the database."""
    heartbeat: type[Heartbeat] | None = None
    """Replaces the heartbeat, which is a thread, in virtual time."""
    endpoint_users: EndpointUsers | None = None
    """None: this process accepts no jobs of its own."""
    tracing: Tracing | None = None
    """None: this process exports no spans."""
    new_jobs: NewJobs | None = None
    """None: this process submits no recurring jobs."""
    budgets: Budgets = NO_BUDGETS
    leader_loops: Sequence[Loop] = ()
    """Loops of the app that the leader of the main shard runs too."""
