"""Render metrics for Prometheus, in its text format or as OpenMetrics.

Its tests: tests/test_admin.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from proxy.metrics.kinds import Histogram, Kind
from proxy.metrics.table import PREFIX, Metric, Sample

_Number: TypeAlias = CounterMetricFamily | GaugeMetricFamily


class Exposition:
    """The metrics in a format that Prometheus reads.

    Args:
        read: returns the current value of every metric.
    """

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        # A separate registry: the default one would add metrics of the interpreter and the process.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Reader(read))

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their content type.

        Args:
            accept: the value of the `Accept` header.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the header contains a version that is not a number
            encode, content_type = choose_encoder("")
        return encode(self._registry), content_type


class _Reader(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        for name, declaration, samples in self._read():
            labels = list(samples[0].labels) if samples else []
            text = PREFIX + name, declaration.help
            if declaration.kind is Kind.HISTOGRAM:
                yield _histogram(HistogramMetricFamily(*text, labels=labels), samples)
            else:
                make = CounterMetricFamily if declaration.kind is Kind.COUNTER else GaugeMetricFamily
                yield _number(make(*text, labels=labels), samples)


def _number(family: _Number, samples: list[Sample]) -> Family:
    for labels, value in samples:
        assert not isinstance(value, Histogram)
        family.add_metric(list(labels.values()), value)
    return family


def _histogram(family: HistogramMetricFamily, samples: list[Sample]) -> Family:
    for labels, value in samples:
        assert isinstance(value, Histogram)
        family.add_metric(list(labels.values()), value.cumulative(), value.sum)
    return family
