"""What one process reports for the status page: plain numbers, taken from its metrics.

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
"""What is counted, in the order of `Report.counts`; how late members were removed comes behind."""

EVERY_SECONDS: Final = 5.0
"""How often a sample is taken."""

SAMPLES: Final = 181
"""Samples that are kept: the differences between them span 15 minutes."""

DELAY_BOUNDS: Final[tuple[float, ...]] = Metrics().removal_delay_seconds.bounds
"""The upper bounds, in seconds, of the classes in which delays are counted; one more has none."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a process is.

    Attributes:
        counts: the counters, as `COUNTERS` names them, then the removals by how late they were.
        upstream: the address of the server.
        reachable: whether the control connection is there.
        blind: whether it may not know every covered prefix.
        clients: its clients.
        covered: its covered prefixes.
        next_deadline: Unix time of the earliest deadline; 0 where there is none.
        clock_offset: how far the server's clock is ahead of this machine's, in seconds.
        sentinels: Sentinels that answer.
        slots: slots of the cluster node.
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
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Report:
        """Return what `pack` has packed."""
        return cls(**packed)


def report_of(metrics: Metrics) -> Report:
    """Return how a process is that counts with these metrics."""
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
    """Return the value below which a part of some values lie, between the bounds of its class; None without values.

    Values above the last bound count as that.
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
    """What was counted in some time.

    Attributes:
        seconds: how long it was.
        counts: as `Report.counts`.
    """

    seconds: float
    counts: list[int]

    def count(self, name: str) -> int:
        """Return how many there were."""
        return max(0, self.counts[COUNTERS.index(name)])

    def rate(self, name: str) -> float:
        """Return how many there were a second."""
        return self.count(name) / self.seconds

    def late(self, part: float) -> float | None:
        """Return how late at most a part of the removals was, in seconds; None where there were none."""
        return quantile(part, [max(0, count) for count in self.counts[len(COUNTERS) :]])


class Point(NamedTuple):
    """What the charts show of the time between two samples.

    Attributes:
        moment: its end, by the monotonic clock.
        removed: members removed a second.
        median: how late half of the keys were, in seconds; None where none was due.
        p99: the same, of 99 of 100 keys.
    """

    moment: float
    removed: float
    median: float | None
    p99: float | None


class History:
    """The counts of the last 15 minutes, of all processes together: a sample each 5 s, of some 400 bytes.

    Args:
        moment: when all processes began, by the monotonic clock.

    Attributes:
        points: what the charts show, the oldest first.
    """

    def __init__(self, moment: float) -> None:
        nothing = [0] * (len(COUNTERS) + len(DELAY_BOUNDS) + 1)
        self.points: deque[Point] = deque(maxlen=SAMPLES - 1)
        self._samples = deque([(moment, array("q", nothing))], maxlen=SAMPLES)
        self._last: dict[int, list[int]] = {0: nothing}

    def add(self, moment: float, reports: Mapping[int, Report | None]) -> None:
        """Take a sample; a process that has not told its counts is taken to stand where it stood.

        Args:
            moment: the monotonic clock, later than at the sample before.
            reports: number of the worker → how it is.
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
        """Return what was counted since the last sample that is so old, or the oldest; None within the first second."""
        sample = next((one for one in reversed(self._samples) if now - one[0] >= seconds), self._samples[0])
        return self._since(sample, now, self._total(reports)) if now - sample[0] >= 1.0 else None

    def whole(self, now: float, reports: Mapping[int, Report | None]) -> Span | None:
        """Return what was counted in all the time that is known."""
        return self.lately(now, reports, float("inf"))
