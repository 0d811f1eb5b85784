"""The report: what was aimed at, then the figures of each front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench.front.fronts import FRONTS, LITELLM, SMG, TOGETHER, UPSTREAM
from bench.front.measure import FIRST_TOKEN, MANY, ONE, READERS, SHORT_STREAM, TOKENS
from bench.front.upstream import PAUSE_S
from bench.report import shown, table
from bench.results import Results
from bench.systems import EMBEDDED, OURS
from bench.targets import NOT_MEASURED, over

REQUESTS = (
    (ONE, "requests/s", "1 connection: requests/s"),
    (ONE, "p50 ms", "p50, ms"),
    (ONE, "p99 ms", "p99, ms"),
    (MANY, "requests/s", "32 connections: requests/s"),
    (MANY, "p50 ms", "p50, ms"),
    (MANY, "p99 ms", "p99, ms"),
    (MANY, "µs of the gateway", "CPU of the gateway per request, µs"),
    (MANY, "µs of the rest", "of its other processes, µs"),
)
STREAMS = (
    (FIRST_TOKEN, "first token p50 ms", "first token p50, ms"),
    (FIRST_TOKEN, "first token p99 ms", "p99, ms"),
    (READERS, "chunks/s", "100 readers: chunks/s"),
    (READERS, "chunks/s per core", "chunks/s per core of the gateway"),
    (READERS, "first token p50 ms", "first token p50, ms"),
)


def text(results: Results) -> str:
    parts = (
        _heading(results),
        _absent(results),
        _aims(results),
        _requests(results),
        _streams(results),
        _fronts(results),
    )
    return "\n".join(part for part in parts if part)


def _heading(results: Results) -> str:
    run = results.run
    versions = ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items())
    smoke = "**A smoke test of a few requests each: its figures are meaningless.**\n\n" if run.get("smoke") else ""
    return (
        f"# Fronts side by side, in one run\n\n{smoke}`{run.get('command')}` at {run.get('commit')}; "
        f"{run.get('machine')}; load before the run {run.get('load')}; {versions}.\n\n"
        "Medians of the rounds, with the smallest and the largest value. Client, front, upstream and stores share the "
        "cores.\n"
    )


def _absent(results: Results) -> str:
    lines = [f"- **{name} is missing**: {why}" for name, why in results.missing.items()]
    lines += [f"- {cell} failed: {why}" for cell, why in results.failed.items()]
    return "## Missing or failed\n\n" + "\n".join(lines) + "\n" if lines else ""


def _aims(results: Results) -> str:
    if results.run.get("smoke"):
        return ""
    rows = [row for ours in (EMBEDDED, TOGETHER, OURS) for row in _aims_of(ours, results) if row[-2] != "-"]
    return "## Aims\n\n" + table(("front", "what", "aim", "measured", ""), rows).replace("---:", "---") if rows else ""


def _aims_of(ours: str, results: Results) -> Iterator[tuple[str, ...]]:
    rate, peer_rate, rust_rate = (results.median(MANY, name, "requests/s") for name in (ours, LITELLM, SMG))
    yield _aim(ours, "requests/s at 32 connections / LiteLLM's", over(rate, peer_rate), 10)
    yield _aim(ours, "requests/s at 32 connections / SMG's", over(rate, rust_rate), 0.5)
    latency = over(added(results, ours, ONE, "p50 ms"), added(results, LITELLM, ONE, "p50 ms"))
    yield _aim(ours, "added latency (p50, 1 connection) / LiteLLM's", latency, 0.25, at_most=True)
    yield _aim(ours, "chunks/s per core of the gateway", results.median(READERS, ours, "chunks/s per core"), 5000)
    first = added(results, ours, FIRST_TOKEN, "first token p50 ms")
    yield _aim(ours, "first token later than the upstream's, ms", first, 5, at_most=True)


def _aim(ours: str, what: str, measured: float | None, bound: float, *, at_most: bool = False) -> tuple[str, ...]:
    aim = f"{'at most' if at_most else 'at least'} {bound:g}"
    if measured is None:
        return ours, what, aim, "-", NOT_MEASURED
    met = measured <= bound if at_most else measured >= bound
    return ours, what, aim, shown(measured), "met" if met else "**missed**"


def added(results: Results, name: str, scenario: str, figure: str) -> float | None:
    """Milliseconds more than the upstream alone."""
    front, alone = results.median(scenario, name, figure), results.median(scenario, UPSTREAM, figure)
    return None if front is None or alone is None else front - alone


def _requests(results: Results) -> str:
    latency = [
        (name, *(shown(added(results, name, *each)) for each in ((ONE, "p50 ms"), (ONE, "p99 ms"), (MANY, "p50 ms"))))
        for name in _measured(results)
        if name != UPSTREAM
    ]
    head = ("front", "1 connection: p50, ms", "p99, ms", "32 connections: p50, ms")
    return (
        f"## Requests that are not streamed\n\n{_table(results, REQUESTS)}\n"
        f"Latency that the front adds to the upstream's:\n\n{table(head, latency)}"
    )


def _streams(results: Results) -> str:
    return (
        f"## Streams\n\nThe first token: one connection, streams of {SHORT_STREAM} tokens. 100 readers: streams of "
        f"{TOKENS} tokens, {PAUSE_S * 1000:g} ms apart, at most {100 / PAUSE_S:,.0f} chunks/s; a chunk is an event of "
        f"the upstream.\n\n{_table(results, STREAMS)}"
    )


def _fronts(results: Results) -> str:
    rows = [(name, str(about["version"]), FRONTS[name].about) for name, about in results.about.items()]
    return "## Fronts\n\n" + table(("front", "version", "what"), rows).replace("---:", "---")


def _measured(results: Results) -> list[str]:
    return [name for name in FRONTS if any(key[1] == name for key in results.values)]


def _table(results: Results, columns: Iterable[tuple[str, str, str]]) -> str:
    columns = list(columns)
    rows = [
        (name, *(_cell(results, scenario, name, figure) for scenario, figure, _ in columns))
        for name in _measured(results)
    ]
    return table(("front", *(title for _, _, title in columns)), rows)


def _cell(results: Results, scenario: str, name: str, figure: str) -> str:
    spread = results.spread(scenario, name, figure)
    between = f" ({shown(spread[0])} to {shown(spread[1])})" if spread else ""
    return shown(results.median(scenario, name, figure)) + between
