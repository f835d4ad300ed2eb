"""Void, in the background, the deadlines of members that were removed without the proxy noticing.

Its tests: tests/test_background.py.

Pops, scripts, eviction, the expiry of a key and writers that bypass the proxy remove members in this way. The old
deadline of such a member is voided at the latest when a client of the proxy adds the member again. This pass frees the
memory earlier. It also protects most members that a writer adds again without the proxy, because their old deadlines
are void by then.

An upgrade of the server may bring commands for TTLs of fields. This pass then turns deadlines that the proxy's versions
of those commands have set into native TTLs.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from proxy.commands.described import ServerCommands
from proxy.coverage.coverage import Coverage
from proxy.expiry.engine import Engine
from proxy.expiry.tasks import is_outage, one_line
from proxy.expiry.tracker import Tracker
from proxy.metrics.table import Metrics
from proxy.scripts.naming import Names

log = structlog.get_logger("proxy.leftovers")

_BETWEEN_ROUNDS: Final = 10.0
_LEAST_COST: Final = 10
"""The rate limit counts each key as at least this many deadlines."""

_MOST_KEYS: Final = 50
"""Maximum number of keys that one script looks at. Most keys have few deadlines, and take the server some 15 µs."""

_STEP_SECONDS: Final = 0.5
"""Each script gets as many keys as the rate allows in this time, `_MOST_KEYS` at most. With fewer keys per call the
proxy would wake more often."""


class Leftovers:
    """The background pass over the deadlines of all keys in the indexes.

    Args:
        engine: checks and voids the deadlines.
        coverage: which databases there are.
        names: which slots there are.
        tracker: knows whether the server is reachable.
        commands: the server's commands.
        rate: maximum number of deadlines to check per second.
        metrics: counts voided deadlines.
    """

    def __init__(
        self,
        engine: Engine,
        coverage: Coverage,
        names: Names,
        tracker: Tracker,
        commands: ServerCommands,
        rate: int,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._coverage = coverage
        self._names = names
        self._tracker = tracker
        self._commands = commands
        self._seen: object = None  # `Engine.changes` before a round that left no void deadline
        self._rate = rate
        self._at_once = min(max(1, int(rate * _STEP_SECONDS / _LEAST_COST)), _MOST_KEYS)
        self._metrics = metrics

    async def run(self) -> None:
        """Check in rounds until cancelled; skip rounds if there are no deadlines or nothing has changed."""
        while True:
            await self._tracker.connected.wait()
            try:
                if self._coverage.ever and self._tracker.is_first:
                    await self._round()
            except Exception as error:  # noqa: BLE001 (the next round tries again)
                say = log.debug if is_outage(error) else log.warning
                say("background check ended early", error=one_line(error), exc_info=not is_outage(error))
            await asyncio.sleep(_BETWEEN_ROUNDS)

    async def _round(self) -> None:
        own, slots = self._commands.has(b"HPEXPIREAT"), self._names.slots
        changes = await self._engine.changes(), own
        if changes == self._seen:
            return
        self._seen, voided, void = None, 0, 0
        for database in sorted(self._coverage.databases):
            for number in [None] if slots is None else sorted(slots.indexed):
                gone, aged = await self._go_through(database, number)
                voided, void = voided + gone, void + gone + aged
        self._seen = None if void else changes
        if voided:
            log.debug("leftover deadlines voided", count=voided)

    async def _go_through(self, database: int, number: int | None) -> tuple[int, int]:
        """Check the keys of one index; return how many deadlines were voided, and how many were void before."""
        further, voided, void = b"0", 0, 0
        while further:
            further, keys = await self._engine.page_of_index(database, further, number)
            for group in self._names.by_slot(keys):
                gone, aged = await self._look_at(database, group)
                voided, void = voided + gone, void + aged
            await asyncio.sleep(0.01)
        return voided, void

    async def _look_at(self, database: int, keys: list[bytes]) -> tuple[int, int]:
        """Check keys of one slot; return how many deadlines were voided, and how many were void before."""
        left, voided, void = [(key, b"0") for key in keys], 0, 0
        own = self._commands.has(b"HPEXPIREAT")
        while left:
            # While a slot is moved, the node refuses a call for several keys if it lacks one of them.
            at_once = 1 if self._names.is_moving(left[0][0]) else self._at_once
            pages = await self._engine.void_pages(database, left[:at_once], own=own)
            gone = sum(gone for _, _, gone, _ in pages)
            voided += gone
            void += sum(aged for *_, aged in pages)
            self._metrics.deadlines_voided_total += gone
            further = [(key, cursor) for (key, _), (cursor, *_) in zip(left, pages, strict=False) if cursor != b"0"]
            left = further + left[len(pages) :]
            await asyncio.sleep(sum(max(seen, _LEAST_COST) for _, seen, *_ in pages) / self._rate)
        return voided, void
