"""Track which slots the proxy's cluster node has, and whether the node is a primary.

Its tests: tests/test_cluster_details.py.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from proxy.expiry.indexes import Indexes
from proxy.expiry.tasks import is_outage, one_line
from proxy.expiry.tracker import Tracker
from proxy.scripts.naming import Names

log = structlog.get_logger("proxy.cluster")

AGAIN_SECONDS: Final = 0.25
"""Seconds between two queries: a node does not report by itself that it has become a primary or got a slot."""

LEAST_SECONDS: Final = 0.02
"""Minimum seconds between two queries."""


class SlotWatch:
    """The task that polls a cluster node.

    Args:
        indexes: queries the node, and notes when a key is elsewhere.
        tracker: knows whether the node is reachable, and reads slots that have arrived.
        names: holds the slots.
    """

    def __init__(self, indexes: Indexes, tracker: Tracker, names: Names) -> None:
        self._indexes = indexes
        self._tracker = tracker
        self._names = names

    async def run(self) -> None:
        """Query the node at intervals, and whenever a key turns out to be elsewhere, until cancelled."""
        misplaced = self._indexes.misplaced
        while True:
            await self._indexes.clustered.wait()
            await self._tracker.connected.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await misplaced.wait()
            misplaced.clear()
            if self._names.slots is not None and self._tracker.connected.is_set():
                try:
                    await self._look()
                except Exception as error:
                    log.debug("cannot ask the node for its slots", error=one_line(error), exc_info=not is_outage(error))
            await asyncio.sleep(LEAST_SECONDS)

    async def _look(self) -> None:
        await self._indexes.look_at_slots()
        slots = self._names.slots
        if slots is not None and slots.unread:
            unread = {number for number in slots.unread if slots.expects(number)}
            slots.unread.clear()
            self._tracker.read_slots(unread)
