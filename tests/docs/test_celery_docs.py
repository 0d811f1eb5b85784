"""docs/celery.md matches the load balancer's parameters, strategies, names and metrics."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import fairlead.celery
from fairlead.celery import LoadBalancer, balancer
from fairlead.celery.metrics import COUNTERS, GAUGES
from fairlead.celery.reconcile import DEEP, REPAIRS, SLACK
from fairlead.celery.strategies import STRATEGIES

TEXT = (Path(__file__).parents[2] / "docs" / "celery.md").read_text(encoding="utf-8")


def rows(title: str) -> dict[str, str]:
    """First cell -> second cell of the table that begins with a title."""
    table = TEXT.partition(f"| {title} |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]+?) \|", table, re.M))


def test_every_parameter_is_listed_with_its_default() -> None:
    listed = rows("`LoadBalancer(app, ...)`")
    parameters = inspect.signature(LoadBalancer).parameters
    assert list(listed) == [name for name in parameters if name != "app"]
    for name, text in listed.items():
        if parameters[name].default is not None:
            assert text == f"`{parameters[name].default!r}`".replace("'", '"'), name


def test_every_strategy_is_listed() -> None:
    assert {name.strip('"') for name in rows("`strategy` | a call goes to")} == set(STRATEGIES)


def test_every_public_name_is_explained() -> None:
    for name in (*fairlead.celery.__all__, *(name for name in vars(LoadBalancer) if not name.startswith("_"))):
        assert re.search(rf"\b{name}\b", TEXT), name


def test_every_function_is_public() -> None:
    written = {
        name for name, value in vars(balancer).items() if inspect.isfunction(value) and name in vars(LoadBalancer)
    }
    assert written
    assert written <= set(fairlead.celery.__all__)


def test_every_kind_of_repair_is_explained() -> None:
    table = TEXT.partition("| repaired |")[2].partition("\n\n")[0]
    named = {name for cell in re.findall(r"^\| (`.+?`) \|", table, re.M) for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(REPAIRS)
    assert f"more than {DEEP:,} messages" in TEXT
    assert f"more than {SLACK:.0%}".replace("%", " %") in TEXT


def test_every_metric_is_listed_with_its_labels() -> None:
    entries = re.findall(r"^\| `(fairlead_celery_\w+)` \| (\w+) \| (.*?)\| (.+) \|$", TEXT, re.M)
    listed = {(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in entries}
    gauges = {(name, "gauge", labels, text) for name, text, labels in GAUGES}
    assert listed == gauges | {(f"{name}_total", "counter", labels, text) for name, text, labels in COUNTERS}
