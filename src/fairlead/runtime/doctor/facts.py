"""What the doctor looks at: everything as it was at one moment. The checks read nothing else, and do no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.config import Settings
from fairlead.dispatch.port import ScopeState, ServiceSnapshot
from fairlead.domain.config import Config
from fairlead.domain.job import Job, JobStatus
from fairlead.domain.keys import Key
from fairlead.domain.limits import Rules
from fairlead.domain.processes import ProcessRecord
from fairlead.store.port import Epoch

WORKER, MANAGER, API = "worker", "manager", "api"


@dataclass(frozen=True, slots=True)
class LineFacts:
    """One shard's dispatcher. `problem`: why it could not be asked. `in_memory`: all of it is in one process, which
    needs no leader. `now` is its clock, by which leases live. `parked` are waiting steps of users at their limit."""

    problem: str | None = None
    in_memory: bool = False
    leader: str | None = None
    term: int | None = None
    snapshots: Mapping[str, ServiceSnapshot] = field(default_factory=dict)
    states: Mapping[str, ScopeState] = field(default_factory=dict)
    parked: Mapping[str, int] = field(default_factory=dict)
    now: float = 0.0


@dataclass(frozen=True, slots=True)
class RedisNode:
    """What one server said of itself. `clock` is its TIME, `asked_at` ours in the middle of asking."""

    info: Mapping[str, str] = field(default_factory=dict)
    clock: float = 0.0
    asked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """A shard's Redis: one node, or every primary of a Cluster."""

    shown: str
    problem: str | None = None
    nodes: Sequence[RedisNode] = ()
    on_loopback: bool = True
    has_login: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """The version that the database has (None: nothing of ours is there), and the one that this Fairlead knows."""

    found: int | None
    known: int


@dataclass(frozen=True, slots=True)
class Echo:
    """How long a message to ourselves took by way of Redis; or why it was not heard."""

    seconds: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class CeleryFacts:
    """Which tasks each Celery worker knows that answered; or why none could be asked."""

    tasks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Facts:
    """`now` is the database's clock. What could not be asked is as its default: the checks then say nothing of it.

    `config` is the configuration with what the code declared; `config_problems` is what is wrong with it.
    `outside`: no gateway looks, but a command whose configuration may be another one than the line's.
    `elsewhere`: another process dispatches from its memory, so the line cannot be seen from here.
    `missing` are jobs, by service, that wait in the truth and not in the line; `undeclared` counts those of services
    that nobody declares. `waiting_in_truth` counts by band those of services whose line does not stand or is not seen.
    """

    settings: Settings
    config: Config
    now: float = 0.0
    config_problems: Sequence[str] = ()
    elsewhere: bool = False
    outside: bool = False
    # The truth
    store_problem: str | None = None
    schema: Schema | None = None
    store: Mapping[str, float | int | str] = field(default_factory=dict)
    disk_free: int | None = None
    disk_total: int | None = None
    rules: Rules = field(default_factory=lambda: Rules({}))
    declared_limits: Mapping[str, int] = field(default_factory=dict)
    epochs: Mapping[str, Epoch] = field(default_factory=dict)
    jobs: Mapping[JobStatus, int] = field(default_factory=dict)
    next_timer: float | None = None
    next_promotion: float | None = None
    processes: Sequence[ProcessRecord] = ()
    died_lately: Sequence[Job] = ()
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    undeclared: Mapping[str, int] = field(default_factory=dict)
    waiting_in_truth: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    keys: Sequence[Key] | None = None
    # The line
    lines: Mapping[str, LineFacts] = field(default_factory=dict)
    redis: Mapping[str, RedisFacts] = field(default_factory=dict)
    echo: Echo | None = None
    # Celery, by the services that are its tasks
    celery: Mapping[str, CeleryFacts] = field(default_factory=dict)
    # This process
    listens_on: Sequence[str] = ()
    priority_problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def truth_is_known(self) -> bool:
        return bool(self.store) and self.store_problem is None

    @property
    def distributed(self) -> bool:
        return self.settings.redis_url is not None

    @property
    def alive(self) -> list[ProcessRecord]:
        return [process for process in self.processes if process.alive(self.now)]

    def having(self, role: str) -> list[ProcessRecord]:
        """The live processes with this role."""
        return [process for process in self.alive if role in process.roles]

    def waiting(self, service: str) -> dict[int, int]:
        """By band, over all shards."""
        if service in self.waiting_in_truth:
            return dict(self.waiting_in_truth[service])
        total: dict[int, int] = {}
        for line in self.lines.values():
            snapshot = line.snapshots.get(service)
            for band, count in snapshot.waiting.items() if snapshot is not None else ():
                total[band] = total.get(band, 0) + count
        return total

    def starts(self, role: str, *services: str, options: str = "") -> str:
        """The command that starts such a process, in backticks: for these services, or for all. What is a function
        needs the code that has it."""
        rules = [self.rules.services[name] for name in services or self.rules.services if name in self.rules.services]
        code = "" if role == MANAGER or all(each.remote for each in rules) else " MODULE:APP"
        return f"`fairlead {role}{code}{options}`"
