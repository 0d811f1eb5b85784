"""Estimated against actual waits, on a replay of a real trace in virtual time.

    python -m bench.estimates TRACE.csv.gz                  the whole table, in about half a minute
    python -m bench.estimates                               the excerpt that the tests use
    python -m bench.estimates --cost stated [TRACE.csv.gz]  with costs

With `--cost`, each job states a cost in tokens, computed by an expression over the trace's ContextTokens and
GeneratedTokens: `stated` weighs them as the service does, as an operator would who has measured it; `rough` reads 100
times as fast as it writes and ignores the half second per call; `tokens` is their plain sum, which mostly counts what
is read and so misleads.

TRACE has the columns TIMESTAMP, ContextTokens and GeneratedTokens, as Azure's public LLM inference traces have. A
simulated service takes half a second per call, and a second per 8,000 tokens read and per 33 tokens written. The
trace's own pauses and bursts are stretched so that its work fills the slots to the given load. It names no users: each
request gets a random one by Zipf's law, so that a few users send most. The dispatcher is the one in memory, the clock
moves from event to event, and estimates are corrected by actual waits as in the gateway.

Every job that had to wait is scored by the estimate it was given on arrival:

    range     the actual wait lies within the range
    close     or misses its nearest end by at most 25 % of the actual wait, or by a second
    strict    the same without the second
    middle    the middle of the range misses the actual wait by at most 25 %
    twice     the actual wait lies within the range, or within twice its nearer end
    width     the upper end of the range divided by the lower one, median
"""

from __future__ import annotations

import argparse
import csv
import gzip
import heapq
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from fairlead.dispatch.memory import MemoryDispatcher
from fairlead.dispatch.port import Claim, Lease, Offer, Release
from fairlead.domain.cost_expression import parsed
from fairlead.domain.rules import Order, Rules, ServiceRules
from fairlead.engine.estimate_accuracy import CLOSE, EstimateAccuracy, score

EXCERPT = Path(__file__).parent.parent / "tests" / "data" / "azure-llm-trace-code-2023-excerpt.csv.gz"
SERVICE = "llm"
LIMITS = (1, 4, 16)
LOADS = (0.3, 0.5, 0.8)
USERS = (20, 200, 1000)
COSTS = {
    "none": None,
    "stated": parsed("17 + input.context / 240 + input.generated"),
    "rough": parsed("input.context / 100 + input.generated"),
    "tokens": parsed("input.context + input.generated"),
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """The arrival in seconds since the first, the duration of its call, and its tokens."""

    at: float
    seconds: float
    context: int
    generated: int


@dataclass(frozen=True, slots=True)
class Wait:
    """An estimate given on arrival, and the actual wait."""

    low: float
    high: float
    waited: float


def read(path: Path) -> list[Request]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    moments = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        _request((moment - moments[0]).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for moment, row in zip(moments, rows, strict=True)
    ]


def _request(at: float, context: int, generated: int) -> Request:
    return Request(at, 0.5 + context / 8000 + generated * 0.03, context, generated)


def users_of(count: int, users: int, seed: int) -> list[str]:
    """The user of each request: the n-th user sends 1/n as many as the first."""
    shares = [1 / (n + 1) for n in range(users)]
    return random.Random(seed).choices([f"user-{n:04}" for n in range(users)], shares, k=count)


class Replay:
    """Simulates one service under a trace, event by event."""

    def __init__(
        self,
        trace: Sequence[Request],
        users: Sequence[str],
        *,
        limit: int,
        load: float,
        order: Order,
        cost: str = "none",
    ) -> None:
        self.trace = trace
        self.users = users
        self.cost = COSTS[cost]
        self.now = 0.0
        self.stretch = sum(each.seconds for each in trace) / (load * limit) / trace[-1].at
        self.dispatcher = MemoryDispatcher(lambda: self.now)
        self.scores = EstimateAccuracy()
        self.claim = Claim("worker", limit, frozenset([SERVICE]))
        self.estimates: dict[str, tuple[float, float, float]] = {}
        self.ends: list[tuple[float, int, Lease]] = []
        self.waits: list[Wait] = []
        rules = ServiceRules(SERVICE, limit=limit, order=order, cost_unit="tokens")
        now(self.dispatcher.configure(Rules({SERVICE: rules}, version=1)))
        now(self.dispatcher.close_scope(rules.scope, 1))
        now(self.dispatcher.open_scope(rules.scope, 1))

    def run(self) -> list[Wait]:
        for number, request in enumerate(self.trace):
            comes = request.at * self.stretch
            while self.ends and self.ends[0][0] < comes:
                self._end()
            self.now = comes
            self._arrive(number)
        while self.ends:
            self._end()
        return self.waits

    def _arrive(self, number: int) -> None:
        job_id = str(number)
        request = self.trace[number]
        tokens = {"context": request.context, "generated": request.generated}
        cost = None if self.cost is None else self.cost(tokens)
        now(self.dispatcher.offer([Offer(job_id, number, SERVICE, self.users[number], 2, 2, 0, 1, cost=cost)]))
        place = self.scores.learned(now(self.dispatcher.positions([job_id])))[job_id]
        self.estimates[job_id] = (*place.estimated_wait(), self.now)
        self.scores.remember(job_id, place, self.now)
        self._start(now(self.dispatcher.exchange(self.claim)))

    def _end(self) -> None:
        self.now, _, lease = heapq.heappop(self.ends)
        self._start(now(self.dispatcher.exchange(self.claim, [Release(lease.name, SERVICE)])))

    def _start(self, leases: list[Lease]) -> None:
        for lease in leases:
            low, high, given = self.estimates.pop(lease.job_id)
            waited = self.now - given
            self.scores.came_true(lease.job_id, waited)
            if waited > 0:
                self.waits.append(Wait(low, high, waited))
            number = int(lease.job_id)
            heapq.heappush(self.ends, (self.now + self.trace[number].seconds, number, lease))


def now(operation: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the in-memory dispatcher without an event loop; it never waits."""
    try:
        operation.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise RuntimeError("it waits for something")


@dataclass(frozen=True, slots=True)
class Outcome:
    jobs: int
    waited: int
    median_wait: float
    within: float
    close: float
    strict: float
    middle: float
    width: float
    twice: float


def outcome(jobs: int, waits: Sequence[Wait]) -> Outcome:
    scores = [score(each.low, each.high, each.waited) for each in waits]
    count = max(1, len(waits))
    strict = [max(0.0, each.low - each.waited, each.waited - each.high) <= CLOSE * each.waited for each in waits]
    middle = [abs((each.low + each.high) / 2 - each.waited) <= CLOSE * each.waited for each in waits]
    return Outcome(
        jobs=jobs,
        waited=len(waits),
        median_wait=median([each.waited for each in waits] or [0.0]),
        within=sum(each.within for each in scores) / count,
        close=sum(each.close for each in scores) / count,
        strict=sum(strict) / count,
        middle=sum(middle) / count,
        twice=sum(each.low / 2 <= each.waited <= each.high * 2 for each in waits) / count,
        width=median([each.high / each.low for each in waits if each.low > 0] or [1.0]),
    )


def replayed(
    trace: Sequence[Request], *, limit: int, load: float, order: Order, users: int = 200, cost: str = "none"
) -> Outcome:
    replay = Replay(trace, users_of(len(trace), users, seed=1), limit=limit, load=load, order=order, cost=cost)
    return outcome(len(trace), replay.run())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.estimates", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", nargs="?", type=Path, default=EXCERPT)
    parser.add_argument("--cost", choices=COSTS, default="none")
    arguments = parser.parse_args()
    trace = read(arguments.trace)
    print("| order | users | limit | load | waited | median wait | range | close | strict | middle | width | twice |")
    print("| --- " * 12 + "|")
    worst = 1.0
    outcomes: dict[Order, list[Outcome]] = {}
    for order, users in [(Order.FIFO, 200), *((Order.FAIR, users) for users in USERS)]:
        for limit in LIMITS:
            for load in LOADS:
                result = replayed(trace, limit=limit, load=load, order=order, users=users, cost=arguments.cost)
                outcomes.setdefault(order, []).append(result)
                worst = min(worst, result.close)
                print(
                    f"| {order.value} | {users} | {limit} | {load:.0%} | {result.waited / result.jobs:.0%} "
                    f"| {result.median_wait:.1f} s | {result.within:.0%} | {result.close:.0%} | {result.strict:.0%} "
                    f"| {result.middle:.0%} | {result.width:.1f} | {result.twice:.0%} |",
                    flush=True,
                )
    for order, results in outcomes.items():
        waited = sum(result.waited for result in results)
        for name in ("middle", "twice"):
            shares = [getattr(result, name) for result in results]
            mean = sum(share * result.waited for share, result in zip(shares, results, strict=True)) / waited
            print(f"{order.value}: {name} {mean:.0%} of those that waited ({min(shares):.0%} to {max(shares):.0%})")
    print(f"\nclose in the worst case: {worst:.0%} of those that waited")


if __name__ == "__main__":
    main()
