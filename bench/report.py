"""Writes bench/RESULTS.md: targets first, then a table per scenario, then the method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from bench.footnotes import remark, sizes_of
from bench.plots import PLOTS
from bench.results import Results
from bench.systems import COMMON, EMBEDDED, OURS, SCENARIOS, SYSTEMS
from bench.targets import NOT_MEASURED, TARGETS

RATES = (
    ("enqueue", "one by one", "Enqueue, one by one, one caller: jobs/s"),
    ("enqueue", "100 callers", "Enqueue, one by one, 100 callers at once: jobs/s"),
    ("enqueue", "bulk", "Enqueue in bulk: jobs/s"),
    ("drain", "jobs/s", "Drain, from the first job's end to the last one's settlement: jobs/s"),
    ("drain", "jobs/s with the start", "Drain, the start of the worker processes included: jobs/s"),
    ("end_to_end", "jobs/s", "End to end, a producer and the workers at once: jobs/s"),
    ("pipeline", "jobs/s", "Pipeline of four steps of 20 ms with limits 5, 4, 1 and 1: jobs/s"),
)
COSTS = (
    ("latency", "p50 ms", "Idle latency, submit to start, p50: ms"),
    ("latency", "p99 ms", "Idle latency, p99: ms"),
    ("sleepers", "s", "2,000 jobs of 0.1 s, 500 at once: s (ideal 0.4)"),
    ("memory", "bytes", "Bytes of the store per queued job"),
    ("newcomer", "grants before it, most", "Newcomer behind one user's bulk of 2,000: grants before it, at worst"),
    ("kill", "s until it runs again", "Run again after SIGKILL of the worker, defaults: s"),
)


def text(results: Results, *, whole: bool = True) -> str:
    """The report of a partial run: only its own results, without plots."""
    parts = [
        "# Side by side, in one run\n",
        _heading(results),
        _absent(results),
        _targets(results, whole),
        *_scenarios(results),
        _cpu(results),
        _scale(results),
        _rates(results),
        _http(results),
        _limits(results),
        _plots() if whole else "",
        _notes(),
        _systems(results),
        _participation(results) if whole else "",
    ]
    return "\n".join(part for part in parts if part)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Empty without rows. All columns but the first are numbers or short."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if not lines:
        return ""
    rule = "| " + " | ".join(["---", *["---:"] * (len(head) - 1)]) + " |"
    return "\n".join(["| " + " | ".join(head) + " |", rule, *lines]) + "\n"


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _heading(results: Results) -> str:
    run = results.run
    versions = ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items())
    smoke = "**A smoke test of a few jobs each: its figures are meaningless.**\n\n" if _is_smoke(results) else ""
    return (
        f"{smoke}`{run.get('command')}` at {run.get('commit')}; {run.get('machine')}; "
        f"load before the run {run.get('load')}; {versions}.\n"
        f"PostgreSQL: {run.get('postgres')}. Redis: its own defaults. Stores, producer and workers share the "
        "cores.\n\nMedians; the spread is from the smallest to the largest value; the ratio is to "
        f"`{OURS}` (PostgreSQL + Redis, 2 workers), and above 1 means that ours is better.\n"
    )


def _is_smoke(results: Results) -> bool:
    return bool(results.run.get("sizes") == "smoke")


def _absent(results: Results) -> str:
    lines = [f"- **{name} is missing**: {why}" for name, why in results.missing.items()]
    lines += [f"- {cell} failed: {why}" for cell, why in results.failed.items()]
    return "## Missing or failed\n\n" + "\n".join(lines) + "\n" if lines else ""


def _targets(results: Results, whole: bool) -> str:
    rows = [row for target in TARGETS if (row := target.row(results))[-1] != NOT_MEASURED or whole]
    if not rows or _is_smoke(results):
        return ""
    met = sum(row[-1] == "met" for row in rows)
    body = table(("what", "against", "target", "measured", ""), rows)
    why = "\nWhy some are missed, and what to try next: [NOTES.md](NOTES.md#where-targets-are-missed).\n"
    return f"## Targets: {met} of {len(rows)} met\n\n{body}" + (why if whole and met < len(rows) else "")


def _scenarios(results: Results) -> Iterable[str]:
    for scenario, figure, title in (*RATES, *COSTS):
        more_is_better = (scenario, figure, title) in RATES
        rows = _rows(results, scenario, figure, more_is_better)
        if rows:
            note = remark(results, scenario, figure)
            yield f"## {title}\n\n{note}" + table(("system", "median", "spread", "n", "ratio to ours"), rows)


def _rows(results: Results, scenario: str, figure: str, more_is_better: bool) -> list[tuple[str, ...]]:
    medians = {name: results.median(scenario, name, figure) for name in SYSTEMS}
    found = {name: value for name, value in medians.items() if value is not None}
    ours = found.get(OURS)
    rows: list[tuple[str, ...]] = []
    for name, value in sorted(found.items(), key=lambda item: item[1], reverse=more_is_better):
        spread = results.spread(scenario, name, figure)
        between = f"{shown(spread[0])} to {shown(spread[1])}" if spread else ""
        ratio = "-"
        if ours and value:
            ratio = f"{ours / value if more_is_better else value / ours:.2f}"
        count = len(results.values[scenario, name, figure])
        label = f"**{name}**" if not SYSTEMS[name].family else name
        bound = _bound(results, scenario, name)
        rows.append((label, shown(value) + bound, between, str(count), ratio + (bound if ratio != "-" else "")))
    rows += [(name, f"not within {cap:g} s", "", "1", "") for name, cap in _never(results, scenario)]
    return rows


def _bound(results: Results, scenario: str, name: str) -> str:
    """A newcomer was still waiting at the timeout, so the figure is a lower bound."""
    waiting = results.median("newcomer", name, "still waiting") if scenario == "newcomer" else None
    return " or more" if waiting else ""


def _never(results: Results, scenario: str) -> list[tuple[str, float]]:
    if scenario != "kill":
        return []
    caps = {name: results.median("kill", name, "not within s") for name in SYSTEMS}
    return [(name, cap) for name, cap in caps.items() if cap is not None]


def _cpu(results: Results) -> str:
    parts = ("PostgreSQL", "Redis", "workers", "others")
    rows = []
    for name in SYSTEMS:
        medians = [results.median("drain", name, f"CPU of {part}") for part in parts]
        if any(value is not None for value in medians):
            total = sum(value or 0.0 for value in medians)
            rows.append((name, *map(shown, medians), shown(total)))
    rows.sort(key=lambda row: float(row[-1].replace(",", "")))
    body = table(("system", "PostgreSQL", "Redis", "its workers", "others", "total"), rows)
    return f"## Where the time of a drain goes: µs of CPU per job\n\n{body}" if body else ""


def _scale(results: Results) -> str:
    found = {key[1:]: value for key, value in results.values.items() if key[0] == "scale"}
    cells = sorted({tuple(figure.split(", ")[1:]) for _, figure in found if ", " in figure}, key=_by_number)
    rows = []
    for waiting, users in cells:
        counts = [f"{number:,}" for number in _by_number((waiting, users))]
        figures = product((EMBEDDED, OURS), ("offer µs", "exchange µs", "bytes"))
        medians = [results.median("scale", system, f"{name}, {waiting}, {users}") for system, name in figures]
        rows.append([*counts, *map(shown, medians)])
    head = ("waiting", "users", "memory: offer µs", "exchange µs", "bytes", "Redis: offer µs", "exchange µs", "bytes")
    if not rows:
        return ""
    plain = shown(results.median("scale", OURS, "plain claim µs"))
    return (
        "## Cost per operation as the backlog and the users grow\n\nPer step: in batches of 100, except for exchanges "
        "in memory, which are one by one. An exchange releases a slot and claims the next step. A plain FIFO claim in "
        f"Redis: {plain} µs.\n\n" + table(head, rows)
    )


def _rates(results: Results) -> str:
    """What rates and groups of users add to a claim."""
    start, unused = "exchange µs with ", "exchange µs with nothing"
    rows = []
    for figure in [figure for scenario, system, figure in results.values if (scenario, system) == ("scale", OURS)]:
        if figure.startswith(start):
            row = [figure.removeprefix(start)]
            for system in (EMBEDDED, OURS):
                value, base = results.median("scale", system, figure), results.median("scale", system, unused)
                row += [shown(value), f"{value / base:.2f}" if value and base else "-"]
            rows.append(row)
    body = table(("with", "memory: exchange µs", "of nothing", "Redis: exchange µs", "of nothing"), rows)
    return (
        "## A claim with costs, rates and groups of users\n\nPer step, as the caller of the dispatcher sees it, one by "
        "one in memory and in batches of 100 in Redis; 1,000 users with 4,000 waiting steps, in 20 teams. The aim is "
        f"at most 1.3 times a claim that uses nothing.\n\n{body}"
        if body
        else ""
    )


def _by_number(cell: tuple[str, ...]) -> list[int]:
    return [int(part.split(" ")[0]) for part in cell]


def _http(results: Results) -> str:
    figures = (
        "submits/s",
        "jobs/s in bulk",
        "echoes/s of the bare server",
        "submit / echo of the server",
        "echoes/s of the bare framework",
        "submit / echo of the framework",
    )
    rows = [
        (name, *(shown(results.median("http", name, figure)) for figure in figures))
        for name in (OURS, EMBEDDED)
        if results.median("http", name, "submits/s") is not None
    ]
    body = table(("system", *figures), rows)
    return f"## HTTP, 32 connections\n\n{body}" if body else ""


def _limits(results: Results) -> str:
    """Our throughput relative to that of the store alone."""
    claim = results.median("scale", OURS, "exchange µs, 1000 waiting, 10 users")
    durable, lite = "PostgreSQL, synchronous_commit=on", "SQLite, synchronous=FULL"
    pairs = (
        (f"{durable}: set-based inserts of the same rows", (durable, "inserts/s"), ("enqueue", OURS, "bulk")),
        (f"{durable}: set-based start and end", (durable, "started and ended/s"), ("drain", OURS, "jobs/s")),
        (
            "PostgreSQL, synchronous_commit=off: set-based start and end",
            ("PostgreSQL, synchronous_commit=off", "started and ended/s"),
            ("drain", "fairlead-2-async", "jobs/s"),
        ),
        (f"{lite}: set-based inserts of the same rows", (lite, "inserts/s"), ("enqueue", EMBEDDED, "bulk")),
        (f"{lite}: set-based start and end", (lite, "started and ended/s"), ("drain", EMBEDDED, "jobs/s")),
    )
    rows = []
    for label, limit_key, ours_key in pairs:
        limit, ours = results.median("limits", *limit_key), results.median(*ours_key)
        if limit is not None:
            rows.append((label, shown(limit), shown(ours), f"{ours / limit:.2f}" if ours else "-"))
    if claim:
        ours, limit = results.median("drain", OURS, "jobs/s"), 1e6 / claim
        near = f"{ours / limit:.2f}" if ours else "-"
        rows.append(("Redis: our claim script alone, one connection", shown(limit), shown(ours), near))
    body = table(("limit", "jobs/s", "ours", "ours / limit"), rows)
    return f"## Limits of the stores\n\n{body}" if body else ""


def _plots() -> str:
    return "".join(f"![{title}](../docs/{file})\n" for file, (_, _, title) in PLOTS.items())


def _notes() -> str:
    lines = [
        "- The clock of a drain starts with the first job's end, so the time excludes what a worker fetched before: "
        "this flatters large batches (pg-boss may take up to 20,000 jobs before the first one runs).",
        "- Slow systems have a time limit (bench/sizes.py): the rate is over what they did in that time, and they had "
        "fewer waiting jobs.",
        "- dbos repeats a killed worker's job when an executor of the same name starts, which happens here at once; "
        "otherwise the job would wait.",
        "- huey and taskiq remove a job from their list when they start it: running jobs cannot be counted, and "
        "would not survive a crash.",
    ]
    return "## Notes on the method\n\n" + "\n".join(lines) + "\n"


def _systems(results: Results) -> str:
    rows = []
    for name, about in results.about.items():
        if SYSTEMS[name].processes is None:
            versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
            rows.append((name, about["store"], versions, about["config"]))
    body = table(("system", "store", "versions", "configuration"), rows).replace("---:", "---")
    variants = "`fairlead-N` has N workers instead of 2; `-async` has synchronous_commit off.\n"
    return f"## Systems, each in its recommended fast configuration\n\n{body}\n{variants}" if body else ""


def _participation(results: Results) -> str:
    """Which systems take part in which scenarios."""
    rows = []
    for scenario, what in SCENARIOS.items():
        names = [name for name, known in SYSTEMS.items() if scenario in known.scenarios]
        peers = [name for name, known in SYSTEMS.items() if known.family]
        shown_systems = "ours"
        if scenario in COMMON:
            absent = [name for name in peers if name not in names]
            shown_systems = "all" + (f" but {', '.join(absent)}" if absent else "")
            if scenario == "kill" and (killed := sizes_of(results).kill):
                shown_systems = f"{', '.join(killed)}; all in `make bench-full`"
        elif names:
            shown_systems = ", ".join(names)
        rows.append((scenario, what, shown_systems))
    return "## Systems of each scenario\n\n" + table(("scenario", "what", "systems"), rows).replace("---:", "---")
