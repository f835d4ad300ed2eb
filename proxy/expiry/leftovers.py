"""Void the deadlines of members that are gone without the proxy having seen it, slowly and in the background.

Members go by pops, scripts, eviction, the expiry of their key, a writer beside the proxy. Their deadlines would do no
harm to a member that comes back through the proxy, which voids them then; this pass frees what they take, and protects
most members that come back by other ways.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from proxy.coverage.coverage import Coverage
from proxy.expiry.engine import Engine
from proxy.expiry.tasks import is_outage, one_line
from proxy.expiry.tracker import Tracker
from proxy.metrics.table import Metrics
from proxy.scripts.naming import Names

log = structlog.get_logger("proxy.leftovers")

_BETWEEN_ROUNDS: Final = 10.0
_LEAST_COST: Final = 10
"""Deadlines that a look at a key counts for at least."""


class Leftovers:
    """The background pass over all keys that the indexes name.

    Args:
        engine: does it.
        coverage: which databases there are.
        names: which slots there are.
        tracker: knows whether the server is reachable.
        rate: deadlines a second to check at most.
        metrics: where to count.
    """

    def __init__(
        self, engine: Engine, coverage: Coverage, names: Names, tracker: Tracker, rate: int, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._coverage = coverage
        self._names = names
        self._tracker = tracker
        self._rate = rate
        self._metrics = metrics

    async def run(self) -> None:
        """Check in rounds until cancelled."""
        while True:
            await self._tracker.connected.wait()
            try:
                if self._tracker.is_first:
                    await self._round()
            except Exception as error:  # noqa: BLE001 (the next round tries again)
                say = log.debug if is_outage(error) else log.warning
                say("background check ended early", error=one_line(error), exc_info=not is_outage(error))
            await asyncio.sleep(_BETWEEN_ROUNDS)

    async def _round(self) -> None:
        voided = 0
        slots = self._names.slots
        for database in sorted(self._coverage.databases) if self._coverage.ever else ():
            for number in [None] if slots is None else sorted(slots.indexed):
                voided += await self._go_through(database, number)
        if voided:
            log.debug("leftover deadlines voided", count=voided)

    async def _go_through(self, database: int, number: int | None) -> int:
        """Look at the keys of one index; return how many deadlines were voided."""
        further, voided = b"0", 0
        while further:
            further, keys = await self._engine.page_of_index(database, further, number)
            for key in keys:
                cursor = b"0"
                while True:
                    cursor, seen, gone = await self._engine.void_page(database, key, cursor)
                    voided += gone
                    self._metrics.deadlines_voided_total += gone
                    await asyncio.sleep(max(seen, _LEAST_COST) / self._rate)
                    if cursor == b"0":
                        break
            await asyncio.sleep(0.01)
        return voided
