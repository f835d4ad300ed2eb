"""Correct the index in the background where it differs from the shadows.

Its tests: tests/test_background.py.

Any user who may set deadlines may also write to the index, and can damage it with a script. Members of a key are swept
late if the key is missing from the index, or has too late a deadline there. This pass goes through all databases and
corrects the index from the shadows.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import structlog

from proxy.coverage.coverage import Coverage
from proxy.expiry.engine import Engine
from proxy.expiry.indexes import KEYS_AT_ONCE
from proxy.expiry.tasks import is_outage, one_line
from proxy.expiry.tracker import Tracker
from proxy.scripts.naming import Names

log = structlog.get_logger("proxy.healing")

BETWEEN_ROUNDS: Final = 5.0
"""Seconds from the end of one round to the beginning of the next."""

STEP: Final = 1000
"""How many keys the server looks at in one step. This takes about 0.2 ms."""

STEP_SECONDS: Final = 0.1
"""Pause after a step, for the server's other clients: at most 10,000 keys a second are checked."""


class Healing:
    """The background pass that corrects the indexes.

    Args:
        engine: looks at the keys and corrects the indexes.
        names: the names of the proxy's own keys.
        coverage: which databases there are.
        tracker: knows whether the server is reachable.
    """

    def __init__(self, engine: Engine, names: Names, coverage: Coverage, tracker: Tracker) -> None:
        self._engine = engine
        self._names = names
        self._coverage = coverage
        self._tracker = tracker
        self._seen: object = None  # `Engine.changes` when the last complete round began
        self._pattern = re.sub(rb"([][*?\\^-])", rb"\\\1", names.prefix) + b"*"

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
            await asyncio.sleep(BETWEEN_ROUNDS)

    async def _round(self) -> None:
        changes = await self._engine.changes()
        if changes == self._seen:
            return
        self._seen = None
        for database in sorted(self._coverage.databases):
            await self._go_round(database)
        self._seen = changes

    async def _go_round(self, database: int) -> None:
        slots = self._names.slots
        if slots is not None and not slots.primary:
            return
        names, entries = b"0", b"0" if slots is None else b""
        number = None if slots is None else slots.first
        indexes: list[int] = []  # in a cluster: slots with indexes that are still to be read
        while names or entries or indexes:
            if not entries and indexes:
                number, entries = indexes.pop(), b"0"
            names, entries, found, keys = await self._engine.own_names(
                database, names, entries, number, self._pattern, STEP
            )
            indexes += [met for met in map(self._names.slot_of, found) if met is not None]
            shadowed = [key for key in map(self._names.key, found) if key is not None]
            await self._heal(database, list(dict.fromkeys((*shadowed, *keys))))
            await asyncio.sleep(STEP_SECONDS)

    async def _heal(self, database: int, keys: list[bytes]) -> None:
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            healed = await self._engine.heal(database, keys[begin : begin + KEYS_AT_ONCE])
            if healed:
                # A cluster needs no warning: there, index and shadows can diverge while slots are moved.
                tell = log.warning if self._names.slots is None else log.info
                tell("index corrected", keys=len(healed), database=database)
