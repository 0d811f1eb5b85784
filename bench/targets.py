"""The targets of the benchmark: ratios within one run, each computed from the results: met, missed or not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.results import Results
from bench.scenarios.newcomer import SLOTS
from bench.systems import EMBEDDED, OURS, SYSTEMS

REDIS_PYTHON = [name for name, known in SYSTEMS.items() if known.family == "python-redis"]
POSTGRES_PYTHON = [name for name, known in SYSTEMS.items() if known.family == "python-postgres"]
ON_POSTGRES = [*POSTGRES_PYTHON, "graphile-worker", "pg-boss"]
ON_REDIS = [*REDIS_PYTHON, "bullmq"]
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Target:
    scenario: str
    against: str
    bound: float
    measured: Callable[[Results], float | None]
    at_most: bool = False

    def row(self, results: Results) -> tuple[str, str, str, str, str]:
        measured = self.measured(results)
        wanted = f"{'at most' if self.at_most else 'at least'} {self.bound:g}"
        if measured is None:
            return self.scenario, self.against, wanted, "-", NOT_MEASURED
        met = measured <= self.bound if self.at_most else measured >= self.bound
        return self.scenario, self.against, wanted, f"{measured:.2f}", "met" if met else "**missed**"


def fastest(results: Results, names: list[str], scenario: str, figure: str) -> float | None:
    return max(_of(results, names, scenario, figure), default=None)


def soonest(results: Results, names: list[str], scenario: str, figure: str) -> float | None:
    return min(_of(results, names, scenario, figure), default=None)


def _of(results: Results, names: list[str], scenario: str, figure: str) -> Iterator[float]:
    return (value for name in names if (value := results.median(scenario, name, figure)) is not None)


def over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def drain(names: list[str], ours: str = OURS) -> Callable[[Results], float | None]:
    """Ours against the fastest of them. Ours has 2 workers, like the peers."""
    return lambda results: over(results.median("drain", ours, "jobs/s"), fastest(results, names, "drain", "jobs/s"))


def enqueue(figure: str, names: list[str]) -> Callable[[Results], float | None]:
    return lambda results: over(results.median("enqueue", OURS, figure), fastest(results, names, "enqueue", figure))


def latency(names: list[str]) -> Callable[[Results], float | None]:
    return lambda results: over(results.median("latency", OURS, "p50 ms"), soonest(results, names, "latency", "p50 ms"))


def claim(results: Results, waiting: int, users: int) -> float | None:
    return results.median("scale", OURS, f"exchange µs, {waiting} waiting, {users} users")


def by_backlog(results: Results) -> float | None:
    return over(claim(results, 1_000_000, 10), claim(results, 1_000, 10))


def by_users(results: Results) -> float | None:
    return over(claim(results, 1_000_000, 100_000), claim(results, 1_000_000, 10))


def by_features(results: Results) -> float | None:
    return over(claim(results, 1_000, 10), results.median("scale", OURS, "plain claim µs"))


def with_limits(system: str, *variants: str) -> Callable[[Results], float | None]:
    """The claim with the most expensive of these variants of `bench/rates.py`, against one that uses none of them."""

    def measured(results: Results) -> float | None:
        found = [results.median("scale", system, f"exchange µs with {name}") for name in variants]
        return over(max(filter(None, found), default=None), results.median("scale", system, "exchange µs with nothing"))

    return measured


RATED = ("requests", "tokens", "requests of each user", "tokens of each user")
GROUPED = ("teams", "teams in organisations")
LIMITS = (("rates", RATED), ("groups", GROUPED), ("rates of groups", ("teams with rates",)))


def killed(results: Results) -> float | None:
    figure = "s until it runs again"
    peers = [name for name, known in SYSTEMS.items() if known.family]
    return over(results.median("kill", OURS, figure), soonest(results, peers, "kill", figure))


TARGETS = (
    Target("drain", "the fastest Python peer on Redis", 2, drain(REDIS_PYTHON)),
    Target("drain", "procrastinate, dbos: the faster one", 15, drain(["procrastinate", "dbos"])),
    Target("drain", "pgqueuer, batches of 100", 1, drain(["pgqueuer"])),
    Target("drain", "bullmq", 1, drain(["bullmq"])),
    Target("drain", "graphile-worker", 0.6, drain(["graphile-worker"])),
    Target("drain", "pg-boss, batches of 5,000", 0.6, drain(["pg-boss"])),
    Target(
        "drain, long-term target", "graphile-worker, pg-boss: the faster one", 1, drain(["graphile-worker", "pg-boss"])
    ),
    Target("enqueue in bulk", "the fastest peer on PostgreSQL", 0.8, enqueue("bulk", ON_POSTGRES)),
    Target(
        "enqueue one by one, 100 callers",
        "the fastest Python peer on PostgreSQL",
        3,
        enqueue("100 callers", POSTGRES_PYTHON),
    ),
    Target("idle latency, p50", "the best peer on PostgreSQL", 1, latency(ON_POSTGRES), at_most=True),
    Target("idle latency, p50", "the best peer on Redis", 2.5, latency(ON_REDIS), at_most=True),
    Target(
        "2,000 x 0.1 s at 500",
        "ideal",
        1.3,
        lambda results: results.median("sleepers", OURS, "times ideal"),
        at_most=True,
    ),
    Target(
        f"newcomer behind a bulk: grants before it, with up to {SLOTS} running already",
        "one per active user",
        1 + SLOTS,
        lambda results: results.median("newcomer", OURS, "grants before it, most"),
        at_most=True,
    ),
    Target("claim, 10 users, 1M waiting", "1k waiting", 1.5, by_backlog, at_most=True),
    Target("claim, 1M waiting, 100k users", "10 users", 2, by_users, at_most=True),
    Target("claim: fair, limited, fenced; 1k waiting, 10 users", "a plain FIFO claim", 1.3, by_features, at_most=True),
    *(
        Target(f"claim with {what}, {where}", "one without", 1.3, with_limits(system, *variants), at_most=True)
        for system, where in ((OURS, "Redis"), (EMBEDDED, "memory"))
        for what, variants in LIMITS
    ),
    Target("embedded, drain", "the fastest Python peer on Redis", 1.5, drain(REDIS_PYTHON, EMBEDDED)),
    Target(
        "HTTP submit",
        "the same server's echo",
        0.4,
        lambda results: results.median("http", OURS, "submit / echo of the server"),
    ),
    Target(
        "HTTP submit, embedded",
        "the same server's echo",
        0.4,
        lambda results: results.median("http", EMBEDDED, "submit / echo of the server"),
    ),
    Target(
        "HTTP submit",
        "the bare framework's echo",
        0.4,
        lambda results: results.median("http", OURS, "submit / echo of the framework"),
    ),
    Target("run again after SIGKILL", "the soonest peer", 1, killed, at_most=True),
    Target(
        "run again after SIGKILL, s",
        "lease_ttl + 1 s",
        16,
        lambda results: results.median("kill", OURS, "s until it runs again"),
        at_most=True,
    ),
)
