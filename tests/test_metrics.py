"""The table of metrics: what a line of it becomes, and what holds its parts together."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from proxy.metrics.kinds import Histogram, Kind
from proxy.metrics.table import DECLARATIONS, Metrics


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
        metrics.known_keys = 7

    metrics.before_reading = refresh
    assert next(metric.samples for metric in metrics.read() if metric.name == "known_keys")[0].value == 7


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
