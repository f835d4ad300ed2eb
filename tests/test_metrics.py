"""The table of metrics: what a line of it becomes, and what holds its parts together."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from proxy.metrics.kinds import Histogram, Kind
from proxy.metrics.table import DECLARATIONS, PREFIX, Metrics
from tests.servers import ROOT


def test_a_metric_is_a_plain_number_that_is_added_to() -> None:
    metrics = Metrics({"upstream": "redis://127.0.0.1:6379", "version": "1"})
    metrics.client_connections_total += 2
    metrics.members_expired_total["sweep"] += 500
    metrics.request_hold_seconds.observe(0.003)
    read = {metric.name: metric.samples for metric in metrics.read()}
    assert read["client_connections_total"] == [({}, 2)]
    assert read["members_expired_total"] == [({"trigger": "sweep"}, 500), ({"trigger": "request"}, 0)]
    assert read["upstream_up"] == [({"upstream": "redis://127.0.0.1:6379"}, 0)]
    assert read["request_hold_seconds"] == [({}, metrics.request_hold_seconds)]


def test_a_value_of_a_label_that_the_table_does_not_name_counts_too() -> None:
    metrics = Metrics()
    metrics.requests_rewritten_total["a script to come"] += 1
    read = {metric.name: metric.samples for metric in metrics.read()}
    assert ({"script": "a script to come"}, 1) in read["requests_rewritten_total"]


def test_gauges_are_brought_up_to_date_when_they_are_read() -> None:
    metrics = Metrics()

    def refresh() -> None:
        metrics.covered_prefixes = 7

    metrics.before_reading = refresh
    assert next(metric.samples for metric in metrics.read() if metric.name == "covered_prefixes")[0].value == 7


def test_two_processes_in_one_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.received_bytes_total["client"] += 1
    one.sweep_duration_seconds.observe(1)
    assert other.received_bytes_total == Counter(client=0, upstream=0)
    assert other.sweep_duration_seconds.count == 0


def test_a_histogram_counts_each_value_within_its_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.0, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [("0.1", 2), ("1.0", 4), ("+Inf", 5)]
    assert histogram.count == 5
    assert histogram.sum == pytest.approx(8.6)


@pytest.mark.parametrize("name", DECLARATIONS)
def test_names_are_as_prometheus_wants_them(name: str) -> None:
    declaration = DECLARATIONS[name]
    assert re.fullmatch(r"[a-z][a-z_]*[a-z]", name)
    assert name.endswith("_total") == (declaration.kind is Kind.COUNTER)
    assert declaration.help.endswith(".")
    if declaration.kind is Kind.HISTOGRAM:
        bounds = getattr(Metrics(), name).bounds
        assert list(bounds) == sorted(set(bounds))
        assert name.endswith("_seconds")


# The dashboard.

DASHBOARD = ROOT / "config" / "grafana" / "dashboard.json"

NOT_SHOWN: frozenset[str] = frozenset({"worker_up"})
"""Metrics of which the dashboard shows nothing, on purpose."""


def expressions() -> list[str]:
    """Every query of the dashboard: of its panels and its variables."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    variables = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())] + variables


def of_the_table(series: str) -> str:
    """The metric that a series belongs to."""
    name = series.removeprefix(PREFIX)
    for suffix in ("_bucket", "_sum", "_count"):
        stem = name.removesuffix(suffix)
        if stem != name and stem in DECLARATIONS:
            assert DECLARATIONS[stem].kind is Kind.HISTOGRAM
            return stem
    assert name in DECLARATIONS, f"{series} is on the dashboard, and no metric"
    assert DECLARATIONS[name].kind is not Kind.HISTOGRAM, f"{series} has no samples of its own"
    return name


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    shown = {of_the_table(series) for text in expressions() for series in re.findall(rf"{PREFIX}\w+", text)}
    assert shown | NOT_SHOWN == set(DECLARATIONS)
    assert not shown & NOT_SHOWN


def test_the_dashboard_asks_of_metrics_what_they_have() -> None:
    for text in expressions():
        for series, selector in re.findall(rf"({PREFIX}\w+){{([^}}]*)}}", text):
            declaration = DECLARATIONS[of_the_table(series)]
            for label, value in re.findall(r'(\w+)=~?"([^"]*)"', selector):
                assert label in ("job", "instance", declaration.label), text
                assert value.startswith("$") or value in declaration.values, text
        for label in re.findall(r"by \(([^)]*)\)", text):
            labels = {one.strip() for one in label.split(",")} - {"le", "instance"}
            assert all(any(labels <= {one.label} for one in DECLARATIONS.values()) for _ in labels), text
        counts = re.findall(rf"(\w+\(){PREFIX}(\w+_total)", text)
        assert all(function in ("rate(", "increase(") for function, _ in counts), text


def test_the_panels_of_the_dashboard_stand_beside_each_other() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"]
