"""The kinds of metrics, and functions that declare a metric in the table.

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
    """The type of a metric; the values are Prometheus's names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of a metric in the table.

    Attributes:
        kind: the type of the metric.
        help: a one-line description.
        label: the name of the metric's label, if any.
        values: the label's values to report from the start; empty if the label has one value for the whole process,
            such as the address of the upstream.
    """

    kind: Kind
    help: str
    label: str | None = None
    values: tuple[str, ...] = ()


class Histogram:
    """A histogram: counts values in classes, each with an upper bound.

    Args:
        bounds: the upper bounds, ascending; one more class has no bound.

    Attributes:
        counts: number of values in each class: above the previous bound, and up to the bound of this class.
        sum: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Record a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Return each bound, in Prometheus's form, with the number of values up to that bound; "+Inf" last."""
        return list(zip([*map(str, self.bounds), "+Inf"], accumulate(self.counts), strict=True))


def _line(declaration: Declaration, **how: Any) -> Any:
    return field(init=False, metadata={_DECLARED: declaration}, **how)


def counter(text: str) -> Any:
    """Declare a number that only increases: an `int`."""
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
    """Declare a distribution of values: a `Histogram`."""
    return _line(Declaration(Kind.HISTOGRAM, text), default_factory=lambda: Histogram(bounds))


def declared(line: Field[Any]) -> Declaration | None:
    """Return the declaration in a dataclass field; None if the field is not a metric."""
    found: Mapping[str, Any] = line.metadata
    return found.get(_DECLARED)
