"""Notice when the upstream, so far a replica, becomes a primary. If it refuses writes later, it has been demoted.

Its tests: tests/test_sentinel.py.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from proxy.beats import until_beat
from proxy.expiry.caller import Caller
from proxy.expiry.tracker import Tracker
from proxy.upstream.endpoint import Upstream

log = structlog.get_logger("proxy.upstream")

AGAIN_SECONDS: Final = 1.0


class RoleWatch:
    """The task that polls the server's role until the server is a primary.

    Args:
        caller: queries the server.
        tracker: knows whether the server is reachable.
        upstream: holds the role.
    """

    def __init__(self, caller: Caller, tracker: Tracker, upstream: Upstream) -> None:
        self._caller = caller
        self._tracker = tracker
        self._upstream = upstream

    async def run(self) -> None:
        """Check at intervals until cancelled."""
        while True:
            await asyncio.sleep(until_beat(AGAIN_SECONDS))
            stay = self._upstream.stay
            if stay.as_primary or not self._tracker.connected.is_set():
                continue
            try:
                greeting = await self._caller.greeting()
                stay.as_primary = greeting.get(b"role") == b"master" and greeting.get(b"mode") != b"cluster"
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                log.debug("cannot ask the upstream for its role", error=str(error))
