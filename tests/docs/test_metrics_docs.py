"""docs/metrics.md lists every metric of the code, and the Grafana dashboard queries only existing ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.gateway.metrics import COUNTER, GAUGE, HISTOGRAM, METRICS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))
KINDS: dict[Any, str] = {COUNTER: "counter", GAUGE: "gauge", HISTOGRAM: "histogram"}
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# The metrics by the names of their series in queries.
SERIES = {name + suffix: known for name, known in METRICS.items() for suffix in SUFFIXES[KINDS[known.kind]]}


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        yield variable["query"]


def test_every_metric_is_listed_with_its_type_and_its_labels() -> None:
    rows = re.findall(r"^\| `(fairlead_\w+)` \| (\w+) \| (.*?)\| (.+) \|$", TEXT, re.M)
    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows}
    assert listed == {
        name + ("_total" if known.kind is COUNTER else ""): (KINDS[known.kind], known.labels, known.help)
        for name, known in METRICS.items()
    }


@pytest.mark.parametrize("label", ["user", "user_id", "job", "job_id", "key", "worker"])
def test_no_metric_has_an_unbounded_label(label: str) -> None:
    assert [name for name, known in METRICS.items() if label in known.labels] == []


def test_every_metric_of_an_alert_exists() -> None:
    alerts = TEXT.partition("## What to alert on")[2]
    named = set(re.findall(r"fairlead_\w+", alerts))
    assert named
    assert named <= SERIES.keys()


def test_the_dashboard_queries_existing_metrics_by_existing_labels() -> None:
    asked = list(queries())
    named = {name for query in asked for name in re.findall(r"fairlead_\w+", query)}
    assert named <= SERIES.keys()
    for query in asked:
        for name, matchers in re.findall(r"(fairlead_\w+)\{(.*?)\}", query):
            assert set(re.findall(r"(\w+)\s*[=!]", matchers)) <= set(SERIES[name].labels), query
        for by in re.findall(r"by \((.*?)\)", query):
            known = {label for name in re.findall(r"fairlead_\w+", query) for label in SERIES[name].labels}
            assert set(re.split(r",\s*", by)) <= known | {"le", "instance"}, query


def test_the_dashboard_shows_every_metric() -> None:
    asked = " ".join(queries())
    assert [name for name in METRICS if name not in asked] == []


def test_the_dashboard_names_no_particular_data_source() -> None:
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"] if "datasource" in panel} == {"${source}"}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
