"""Collect the figures of the status page on request, once for all concurrent requests, within a bounded time.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from redis.exceptions import RedisError

from proxy import __version__
from proxy.beats import until_beat
from proxy.ending import end
from proxy.reporting import Reporting
from proxy.status.judge import judge
from proxy.status.names import visible
from proxy.status.report import EVERY_SECONDS, History, Point, Report, Span
from proxy.status.shape import Looked, Prefixes, Proxies, Removals, Requests, Status, Upstream, Worker
from proxy.upstream.words import in_words

FRESH_SECONDS: Final = 1.5
"""How long to serve the same figures."""

WAIT_SECONDS: Final = 1.0
"""Time limit for the answers of the server and the workers."""

LATELY_SECONDS: Final = 10.0
"""Shortest time over which to compute requests per second."""

_LATE: Final = "it has not answered within a second"


class StatusBoard:
    """Collects the figures.

    Args:
        reporting: reports the proxy's state.
        names: whether to show names of keys.
    """

    def __init__(self, reporting: Reporting, *, names: bool) -> None:
        self._reporting = reporting
        self._names = names
        self._history = History(time.monotonic())
        self._made = float("-inf")  # when the figures were made, by the monotonic clock
        self._sampling: asyncio.Task[None] | None = None
        self._making: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[dict[str, Any] | None] | None = None
        self._looked: Looked | None = None
        self._trouble: str | None = None
        self.status: Status | None = None

    def open(self) -> None:
        """Start sampling for the history."""
        self._sampling = asyncio.get_running_loop().create_task(self._sample())

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(until_beat(EVERY_SECONDS))
            reports = await self._reporting.reports(WAIT_SECONDS)
            self._history.add(time.monotonic(), reports)

    async def gather(self) -> None:
        """Update the figures if they are old. Concurrent callers share one update."""
        if self._sampling is not None and self._sampling.done():
            self._sampling.result()  # the task ends only with an error: raise that error
        if time.monotonic() - self._made < FRESH_SECONDS:
            return
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._make())
        await asyncio.shield(self._making)

    async def _make(self) -> None:
        loop = asyncio.get_running_loop()
        waiting: set[asyncio.Task[Any]] = set()
        if self._looking is None:
            self._looking = loop.create_task(self._reporting.look_at_server())
            waiting.add(self._looking)  # a look that is already late is not waited for again
        reports = loop.create_task(self._reporting.reports(WAIT_SECONDS))
        await asyncio.wait({reports, *waiting}, timeout=WAIT_SECONDS)
        told = await reports
        self._take_look()
        self.status = self._compose(told)
        self._made = time.monotonic()

    def _take_look(self) -> None:
        assert self._looking is not None
        if not self._looking.done():
            self._trouble = _LATE
            return
        looking, self._looking = self._looking, None
        try:
            found = looking.result()
        except (RedisError, OSError, TimeoutError) as error:
            self._trouble = visible(in_words(error))
            return
        if found is None:
            self._trouble = "it has not been asked yet" if self._looked is None else _LATE
            return
        self._looked, self._trouble = Looked.model_validate(found), None

    async def close(self) -> None:
        """Cancel the running tasks."""
        await end(task for task in (self._sampling, self._making, self._looking) if task is not None)

    def _compose(self, reports: Mapping[int, Report | None]) -> Status:
        now, moment = time.time(), time.monotonic()
        known = [report for report in reports.values() if report is not None]
        looked = self._looked
        upstream = _upstream(known, looked, self._trouble)
        lately = self._history.lately(moment, reports, LATELY_SECONDS)
        whole = self._history.whole(moment, reports)
        blind = any(report.blind for report in known)
        state = judge(
            hung=self._reporting.hung(),
            obstacle=None if (obstacle := self._reporting.readiness.obstacle()) is None else visible(obstacle),
            upstream=upstream,
            blind=blind,
            lost=0 if whole is None else whole.count("lost"),
            now=now,
        )
        covered = max((report.covered for report in known), default=0)
        return Status(
            version=__version__,
            at=now,
            names=self._names,
            state=state,
            upstream=upstream,
            proxies=Proxies(
                workers=[_worker(number, report) for number, report in reports.items()],
                others=_others(looked, len(reports)),
            ),
            requests=_requests(lately),
            removals=_removals(self._history.points, moment, lately, whole),
            due=None if looked is None else looked.due,
            due_trouble=self._trouble if looked is None else looked.due_trouble,
            passed_over=0 if looked is None else looked.passed_over,
            prefixes=looked.prefixes
            if looked is not None
            else Prefixes(count=covered, listed=[], exact=True, sampled=None),
            biggest=None if looked is None else looked.biggest,
            rules=None if looked is None else looked.rules,
        )


def _others(looked: Looked | None, workers: int) -> int | None:
    """Return the number of other proxies, not counting this proxy's own workers."""
    if looked is None or looked.others is None:
        return None
    return max(0, looked.others - (workers - 1))


def _upstream(known: list[Report], looked: Looked | None, trouble: str | None) -> Upstream:
    earliest = min((report.next_deadline for report in known if report.next_deadline), default=None)
    return Upstream(
        address=visible(known[0].upstream) if known else "",
        reachable=bool(known) and all(report.reachable for report in known),
        product=None if looked is None else looked.product,
        version=None if looked is None else looked.version,
        role=None if looked is None else looked.role,
        mode=None if looked is None else looked.mode,
        replicas=None if looked is None else looked.replicas,
        commands=None if looked is None or trouble else looked.commands,
        slots=max((report.slots for report in known), default=0),
        sentinels=max((report.sentinels for report in known), default=0),
        clock_offset=known[0].clock_offset if known else 0.0,
        next_deadline=earliest,
        asked=None if looked is None else looked.at,
        trouble=trouble,
    )


def _worker(number: int, report: Report | None) -> Worker:
    if report is None:
        return Worker(number=number, answers=False, clients=None, blind=None)
    return Worker(number=number, answers=True, clients=report.clients, blind=report.blind)


def _requests(lately: Span | None) -> Requests | None:
    if lately is None:
        return None
    return Requests(
        seconds=round(lately.seconds, 1),
        shared=round(lately.rate("shared"), 1),
        scripted=round(lately.rate("scripted"), 1),
        held=round(lately.rate("held"), 1),
        refused=round(lately.rate("refused"), 1),
    )


def _removals(points: Iterable[Point], moment: float, lately: Span | None, whole: Span | None) -> Removals:
    shown = list(points)
    return Removals(
        removed_lately=None if lately is None else round(lately.rate("removed"), 1),
        removed=0 if whole is None else whole.count("removed"),
        median=None if whole is None else whole.late(0.5),
        p99=None if whole is None else whole.late(0.99),
        ages=[round(moment - point.moment, 1) for point in shown],
        rates=[round(point.removed, 1) for point in shown],
        medians=[point.median for point in shown],
        p99s=[point.p99 for point in shown],
    )
