"""Remove members on time: sleep until the next deadline, not for a fixed time, and work in bounded batches.

Its tests: tests/test_background.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

import structlog
from redis.exceptions import ClusterDownError

from proxy.beats import until_beat
from proxy.coverage.alarm import Alarm
from proxy.coverage.coverage import Coverage
from proxy.expiry.clock import ServerClock
from proxy.expiry.engine import SWEPT_AT_ONCE, Engine
from proxy.expiry.indexes import Indexes
from proxy.expiry.tasks import is_outage, one_line
from proxy.expiry.tracker import Tracker
from proxy.metrics.table import Metrics

log = structlog.get_logger("proxy.sweeper")

_LONGEST_SLEEP: Final = 60.0
"""Maximum sleep of the sweeper while nothing has a deadline, in seconds."""

_WATCH_SECONDS: Final = 0.25
"""Maximum sleep while anything has a deadline, in seconds: clients of other proxies set deadlines too. Each check also
samples the server's clock: members that a step forward has made due may be visible for this long."""

_LONGEST_TURN: Final = 0.25
"""Maximum seconds before checking again whether the proxy with the sweeper's lease does its work."""

_AFTER_FAILURE: Final = 1.0

_TOLD_STEP_MS: Final = 100.0
"""Smaller steps of the server's clock are not logged."""


class Sweeper:
    """The task that removes due members.

    Args:
        engine: removes members.
        indexes: finds due members.
        coverage: knows whether anything may have deadlines.
        alarm: wakes the sweeper when a client sets an earlier deadline.
        clock: the server's clock.
        tracker: knows whether the server is reachable.
        metrics: the metrics to update.
        enabled: whether to remove members; if not, the sweeper only keeps track of deadlines.
    """

    def __init__(
        self,
        engine: Engine,
        indexes: Indexes,
        coverage: Coverage,
        alarm: Alarm,
        clock: ServerClock,
        tracker: Tracker,
        metrics: Metrics,
        *,
        enabled: bool,
    ) -> None:
        self._engine = engine
        self._indexes = indexes
        self._coverage = coverage
        self._alarm = alarm
        self._clock = clock
        self._tracker = tracker
        self._metrics = metrics
        self._enabled = enabled
        self._wake = asyncio.Event()
        self._failure = ""  # the last failure that was logged, until a sweep succeeds
        clock.on_step(self._clock_stepped)

    def _clock_stepped(self, milliseconds: float) -> None:
        if abs(milliseconds) >= _TOLD_STEP_MS:
            advice = "deadlines follow that clock: configure its time service to slew the clock, not step it"
            log.warning("upstream clock stepped", ms=round(milliseconds), advice=advice)
        self._wake.set()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self._tracker.connected.wait()
            try:
                await self._sweep_and_sleep()
                self._failure = ""
            except ClusterDownError:
                await asyncio.sleep(_LONGEST_TURN)
            except Exception as error:  # noqa: BLE001 (whatever the server answers, keep sweeping)
                if is_outage(error) and not self._tracker.connected.is_set():
                    continue  # the tracker logs the outage, and reconnects, perhaps to another server
                self._failed(error)
                await asyncio.sleep(_AFTER_FAILURE)

    def _failed(self, error: Exception) -> None:
        failure = one_line(error)
        if failure != self._failure:
            log.warning("sweep failed", error=failure, exc_info=not is_outage(error))
        self._failure = failure

    async def _sweep_and_sleep(self) -> None:
        alarm = self._alarm
        alarm.begin_watch()
        due, taken, earliest = [], 0.0, -math.inf
        if alarm.next_deadline > self._clock.now():  # otherwise members are probably due
            earliest = await self._indexes.glance()
        if earliest == -math.inf:
            looks, taken = await self._indexes.look(for_sweep=self._enabled)
            due = [look for look in looks if look.due]
            earliest = min((look.earliest for look in looks), default=math.inf)
        if due and self._enabled:
            self._metrics.sweeper_leader = float(not taken)
        if due and self._enabled and not taken:
            for look in due:
                await self._sweep(look.database, look.due)
            return
        self._wake.clear()
        alarm.end_watch(earliest, self._clock.now(), self._wake.set)
        seconds = (alarm.next_deadline - self._clock.now()) / 1000
        if due:
            # Another proxy sweeps, or sweeping is off and members are removed on access.
            await asyncio.sleep(min(max(taken / 1000, 0.01), _LONGEST_TURN) if self._enabled else _LONGEST_TURN)
            return
        if seconds <= 0:
            return
        try:
            longest = None if not self._coverage.ever else _LONGEST_SLEEP if alarm.is_idle else _WATCH_SECONDS
            async with asyncio.timeout(longest if longest is None else min(seconds, until_beat(longest))):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _sweep(self, database: int, due: list[tuple[bytes, float]]) -> None:
        loop = asyncio.get_running_loop()
        for begin in range(0, len(due), SWEPT_AT_ONCE):
            began, exactly = loop.time(), time.monotonic()  # the loop's clock has a resolution of 1 ms
            await self._engine.sweep(database, due[begin : begin + SWEPT_AT_ONCE])
            self._metrics.sweep_duration_seconds.observe(time.monotonic() - exactly)
            # Leave the server to others for as long as the sweep took: a mass expiry uses half of its time at most.
            await asyncio.sleep(loop.time() - began)
