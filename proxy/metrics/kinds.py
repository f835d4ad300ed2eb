"""The kinds of metrics, and how a line of the table declares one.

Its tests: tests/test_metrics.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from enum import Enum
from itertools import accumulate
from typing import Any, Final

_DECLARED: Final = "metric"


class Kind(Enum):
    """What a metric's value means; the values are Prometheus's names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the table says of one metric.

    Attributes:
        kind: what its value means.
        help: what it counts, in one line.
        label: the name of its label, if it has one.
        values: the label's values that are told from the start; none where the label has one value for the whole
            process, such as the address of the upstream.
    """

    kind: Kind
    help: str
    label: str | None = None
    values: tuple[str, ...] = ()


class Histogram:
    """How often a value was within each bound.

    Args:
        bounds: the upper bounds, ascending; there is one more without a bound.

    Attributes:
        counts: how many values were at most the bound at the same place, and more than the one before.
        sum: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Return each bound as Prometheus writes it, with how many values were at most that; "+Inf" last."""
        return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self.counts), strict=True))


def _line(declaration: Declaration, **how: Any) -> Any:
    return field(init=False, metadata={_DECLARED: declaration}, **how)


def counter(text: str) -> Any:
    """Declare a number that only grows: an `int`."""
    return _line(Declaration(Kind.COUNTER, text), default=0)


def tally(text: str, label: str, *values: str) -> Any:
    """Declare a counter for each value of a label: a `Counter[str]`."""
    return _line(
        Declaration(Kind.COUNTER, text, label, values), default_factory=lambda: Counter(dict.fromkeys(values, 0))
    )


def upstream_counter(text: str) -> Any:
    """Declare a counter for each upstream server: an `int`."""
    return _line(Declaration(Kind.COUNTER, text, "upstream"), default=0)


def gauge(text: str, label: str | None = None) -> Any:
    """Declare a number that goes up and down: a `float`."""
    return _line(Declaration(Kind.GAUGE, text, label), default=0.0)


def histogram(text: str, *bounds: float) -> Any:
    """Declare the distribution of a value: a `Histogram`."""
    return _line(Declaration(Kind.HISTOGRAM, text), default_factory=lambda: Histogram(bounds))


def declared(line: Field[Any]) -> Declaration | None:
    """Return what a field of the table declares; None for one that is no metric."""
    found: Mapping[str, Any] = line.metadata
    return found.get(_DECLARED)
