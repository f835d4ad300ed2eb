"""Rebuild the index from the shadows, slowly and in the background, wherever the two differ.

The index is derived, and every user who may set deadlines may write it: by a script of their own they can remove it,
put something else in its place, or write times that are not true. A deadline that the index does not tell, or tells as
later than it is, is swept late. This pass goes round all databases and writes what the shadows say.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import structlog
from redis.asyncio import Redis

from proxy.expiry.engine import KEYS_AT_ONCE, Engine
from proxy.expiry.tasks import is_outage, one_line
from proxy.expiry.tracker import Tracker
from proxy.scripts.calls import script
from proxy.scripts.naming import Names
from proxy.session.known import KnownKeys

log = structlog.get_logger("proxy.healing")

BETWEEN_ROUNDS: Final = 5.0
"""Seconds from the end of one round to the beginning of the next."""

STEP: Final = 1000
"""Keys that the server looks at in one step, some 0.2 ms."""

STEP_SECONDS: Final = 0.1
"""How long to leave the server to others after a step: 10,000 keys a second."""


class Healing:
    """The background pass over the proxy's own keys.

    Args:
        control: the proxy's own connection.
        engine: learns the deadlines that were missing.
        names: the names of the proxy's own keys.
        known: which databases there are.
        tracker: knows whether the server is reachable.
    """

    def __init__(self, control: Redis, engine: Engine, names: Names, known: KnownKeys, tracker: Tracker) -> None:
        self._control = control
        self._engine = engine
        self._names = names
        self._known = known
        self._tracker = tracker
        self._pattern = re.sub(rb"([][*?\\^-])", rb"\\\1", names.prefix) + b"*"

    async def run(self) -> None:
        """Check in rounds until cancelled."""
        while True:
            await self._tracker.connected.wait()
            try:
                for database in sorted(self._known.databases):
                    await self._go_round(database)
            except Exception as error:  # noqa: BLE001 (the next round tries again)
                say = log.debug if is_outage(error) else log.warning
                say("background check ended early", error=one_line(error), exc_info=not is_outage(error))
            await asyncio.sleep(BETWEEN_ROUNDS)

    async def _go_round(self, database: int) -> None:
        names_cursor, index_cursor = b"0", b"0"
        while names_cursor or index_cursor:
            arguments = [database, names_cursor, index_cursor, self._pattern, STEP]
            names_cursor, index_cursor, names, keys = await self._control.eval(
                script("own_names"),  # type: ignore[arg-type]
                1,
                self._names.index,
                *arguments,  # type: ignore[arg-type]
            )
            shadowed = [key for key in map(self._names.key, names) if key is not None]
            await self._heal(database, list(dict.fromkeys((*shadowed, *keys))))
            await asyncio.sleep(STEP_SECONDS)

    async def _heal(self, database: int, keys: list[bytes]) -> None:
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            page = keys[begin : begin + KEYS_AT_ONCE]
            involved = [self._names.index, *(name for key in page for name in (key, self._names.shadow(key)))]
            healed = await self._control.eval(script("heal"), len(involved), *involved, database)  # type: ignore[arg-type]
            if healed:
                log.warning("index corrected", keys=len(healed), database=database)
                await self._engine.learn(healed)
