"""The report of each process for the status page: numbers taken from its metrics.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from proxy.metrics.table import Metrics

COUNTERS: Final = ("removed", "shared", "scripted", "held", "refused", "lost")
"""The counters in `Report.counts`, in this order. After them come the numbers of removals, by how late they were."""

EVERY_SECONDS: Final = 5.0
"""Interval between samples."""

SAMPLES: Final = 181
"""How many samples to keep: together they span 15 minutes."""

DELAY_BOUNDS: Final[tuple[float, ...]] = Metrics().removal_delay_seconds.bounds
"""The upper bounds, in seconds, of the classes in which delays are counted. One more class, the last, has no bound."""


@dataclass(frozen=True, slots=True)
class Report:
    """The state of one process.

    Attributes:
        counts: the counters, in the order of `COUNTERS`; then the numbers of removals, by how late they were.
        upstream: the address of the server.
        reachable: whether the control connection is up.
        blind: whether the process may be missing covered prefixes.
        clients: the number of clients of the process.
        covered: the number of covered prefixes.
        next_deadline: Unix time of the earliest deadline; 0 if there is none.
        clock_offset: how far the server's clock is ahead of this machine's, in seconds.
        sentinels: the number of Sentinels that answer.
        slots: the number of slots of the cluster node.
    """

    counts: list[int]
    upstream: str
    reachable: bool
    blind: bool
    clients: int
    covered: int
    next_deadline: float
    clock_offset: float
    sentinels: int
    slots: int

    def pack(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Report:
        """Return the report that `pack` packed."""
        return cls(**packed)


def report_of(metrics: Metrics) -> Report:
    """Return the state of the process that these metrics describe."""
    metrics.before_reading()
    counts = [
        sum(metrics.members_expired_total.values()),
        metrics.shared_requests_total,
        sum(metrics.requests_rewritten_total.values()),
        metrics.requests_held_total,
        sum(metrics.requests_refused_total.values()),
        sum(metrics.expiry_events_lost_total.values()),
    ]
    return Report(
        counts=[*counts, *metrics.removal_delay_seconds.counts],
        upstream=metrics.constants.get("upstream", ""),
        reachable=bool(metrics.upstream_up),
        blind=bool(metrics.blind),
        clients=int(metrics.client_connections),
        covered=int(metrics.covered_prefixes),
        next_deadline=metrics.next_deadline_timestamp_seconds,
        clock_offset=metrics.clock_offset_seconds,
        sentinels=int(metrics.sentinels_up),
        slots=int(metrics.cluster_slots),
    )


def quantile(part: float, counts: Sequence[int], bounds: Sequence[float] = DELAY_BOUNDS) -> float | None:
    """Return a quantile of values counted in classes, interpolated within a class; None if there are no values.

    Values above the last bound count as equal to that bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, passed = part * total, 0
    for place, count in enumerate(counts):
        if passed + count >= rank and count:
            if place >= len(bounds):
                return bounds[-1]
            low = bounds[place - 1] if place else 0.0
            return low + (bounds[place] - low) * (rank - passed) / count
        passed += count
    return bounds[-1]


class Span(NamedTuple):
    """The counts of a span of time.

    Attributes:
        seconds: the length of the span.
        counts: the differences, in the order of `Report.counts`.
    """

    seconds: float
    counts: list[int]

    def count(self, name: str) -> int:
        """Return by how much a counter grew."""
        return max(0, self.counts[COUNTERS.index(name)])

    def rate(self, name: str) -> float:
        """Return by how much a counter grew per second."""
        return self.count(name) / self.seconds

    def late(self, part: float) -> float | None:
        """Return a quantile of the removals' delay in seconds; None if nothing was removed."""
        return quantile(part, [max(0, count) for count in self.counts[len(COUNTERS) :]])


class Point(NamedTuple):
    """The data of the charts for the time between two samples.

    Attributes:
        moment: the end of that time, by the monotonic clock.
        removed: members removed per second.
        median: the sweeper's delay that half of the keys did not exceed, in seconds; None if no key was due.
        p99: the sweeper's delay that 99 of 100 keys did not exceed, in seconds; None if no key was due.
    """

    moment: float
    removed: float
    median: float | None
    p99: float | None


class History:
    """The counts of the last 15 minutes, summed over all processes: a sample of some 400 bytes every 5 s.

    Args:
        moment: when the processes started, by the monotonic clock.

    Attributes:
        points: the data of the charts, the oldest first.
    """

    def __init__(self, moment: float) -> None:
        nothing = [0] * (len(COUNTERS) + len(DELAY_BOUNDS) + 1)
        self.points: deque[Point] = deque(maxlen=SAMPLES - 1)
        self._samples = deque([(moment, array("q", nothing))], maxlen=SAMPLES)
        self._last: dict[int, list[int]] = {0: nothing}

    def add(self, moment: float, reports: Mapping[int, Report | None]) -> None:
        """Take a sample. A process without a report keeps its previous counts.

        Args:
            moment: the time by the monotonic clock, later than that of the previous sample.
            reports: number of the worker → its report.
        """
        total = self._total(reports)
        span = self._since(self._samples[-1], moment, total)
        self.points.append(Point(moment, span.rate("removed"), span.late(0.5), span.late(0.99)))
        self._samples.append((moment, array("q", total)))

    def _total(self, reports: Mapping[int, Report | None]) -> list[int]:
        self._last |= {number: report.counts for number, report in reports.items() if report is not None}
        return [sum(column) for column in zip(*self._last.values(), strict=True)]

    def _since(self, sample: tuple[float, array[int]], now: float, total: list[int]) -> Span:
        moment, counts = sample
        return Span(now - moment, [after - before for after, before in zip(total, counts, strict=True)])

    def lately(self, now: float, reports: Mapping[int, Report | None], seconds: float) -> Span | None:
        """Return the counts since the last sample that is at least `seconds` old, or since the oldest sample if all are
        younger; None in the first second."""
        sample = next((one for one in reversed(self._samples) if now - one[0] >= seconds), self._samples[0])
        return self._since(sample, now, self._total(reports)) if now - sample[0] >= 1.0 else None

    def whole(self, now: float, reports: Mapping[int, Report | None]) -> Span | None:
        """Return the counts of the whole history."""
        return self.lately(now, reports, float("inf"))
