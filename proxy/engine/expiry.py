"""The engine: what the proxy itself asks of Redis, over its own connections, to remove members that are due."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis

from proxy.clock import ServerClock
from proxy.engine.known import KnownKeys
from proxy.engine.naming import Names
from proxy.engine.scripts import script

KEYS_AT_ONCE: Final = 128
"""Keys that one script looks at, at most."""

PAGE: Final = 1000
"""Entries of the index that are read at once."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is due in one database.

    Attributes:
        database: its number.
        earliest: its earliest deadline, in Unix ms; infinite when there is none.
        due: keys with members that are due, earliest first; not necessarily all.
    """

    database: int
    earliest: float
    due: list[bytes]


class Engine:
    """Calls the scripts.

    Args:
        control: the connection of the proxy's own.
        names: the names of the proxy's own keys.
        known: the keys with deadlines; kept current with what the scripts report.
        clock: the server's clock; kept current likewise.
        batch: members that one script removes at most.

    Attributes:
        databases: the databases that may hold deadlines.

    Every method raises `redis.exceptions.RedisError` when the server does not answer, or with an error.
    """

    def __init__(self, control: Redis, names: Names, known: KnownKeys, clock: ServerClock, batch: int) -> None:
        self.databases: list[int] = [0]
        self._control = control
        self._names = names
        self._known = known
        self._clock = clock
        self._batch = batch
        self._busy: dict[bytes, asyncio.Future[None]] = {}

    async def _evaluate(self, name: str, keys: Iterable[bytes], arguments: Iterable[bytes | int]) -> Any:
        keys = list(keys)
        return await self._control.eval(script(name), len(keys), *keys, *arguments)  # type: ignore[arg-type]

    async def find_databases(self) -> None:
        """Find the databases that have keys at all."""
        keyspace = await self._control.info("keyspace")
        self.databases = sorted({0, *(int(name[2:]) for name in keyspace if name.startswith("db"))})

    async def look(self) -> list[Look]:
        """Ask, for each database, what is due and when something will be."""
        sent = self._clock.local()
        moment, found = await self._evaluate("due", [self._names.index], [KEYS_AT_ONCE, *self.databases])
        self._clock.observe(sent, self._clock.local(), moment)
        return [Look(int(database), float(first) if first else math.inf, due) for database, first, due in found]

    async def sweep(self, database: int, keys: list[bytes]) -> int:
        """Remove what is due in some keys of one database, a batch at most.

        Args:
            database: its number.
            keys: the keys, `KEYS_AT_ONCE` at most.

        Returns:
            How many members were removed.
        """
        pairs = [name for key in keys for name in (key, self._names.shadow(key))]
        sent = self._clock.local()
        moment, removed, left = await self._evaluate("sweep", [self._names.index, *pairs], [database, self._batch])
        self._clock.observe(sent, self._clock.local(), moment)
        if len(self.databases) == 1:
            for key, deadline in zip(keys, left, strict=True):
                self._known.learn(key, float(deadline) if deadline else None)
        return int(removed)

    async def learn(self, keys: list[bytes]) -> list[bytes]:
        """Read the earliest deadlines of some keys, and make them known.

        Returns:
            The keys that have none.
        """
        without: list[bytes] = []
        for begin in range(0, len(keys), PAGE):
            page = keys[begin : begin + PAGE]
            count = len(self.databases)
            found = await self._evaluate("deadlines", [self._names.index], [count, *self.databases, *page])
            for key, deadline in zip(page, found, strict=True):
                self._known.learn(key, float(deadline) if deadline else None)
                if not deadline:
                    without.append(key)
        return without

    async def read_index(self, database: int, cursor: float, offset: int) -> list[tuple[bytes, float]]:
        """Read a page of a database's index, earliest first.

        Args:
            database: its number.
            cursor: the deadline to begin at, in Unix ms.
            offset: how many entries with that very deadline have been read already.

        Returns:
            Keys with their earliest deadlines in Unix ms; fewer than `PAGE` at the end.
        """
        low = b"-inf" if cursor == -math.inf else b"%d" % int(cursor)
        flat = await self._evaluate("page", [self._names.index], [database, low, offset, PAGE])
        return [(flat[place], float(flat[place + 1])) for place in range(0, len(flat), 2)]

    async def remove_due(self, keys: tuple[bytes, ...] | None) -> None:
        """Remove all that is due in some keys, in whatever database; or, for None, in all keys.

        Requests for the same key at the same time share the work.
        """
        if keys is None:
            while any([await self._drain(look) for look in await self.look()]):
                pass
            return
        while due := self._known.due(keys, self._clock.now()):
            free = [key for key in due if key not in self._busy]
            if not free:
                await asyncio.wait([self._busy[key] for key in due])
                continue
            done = asyncio.get_running_loop().create_future()
            self._busy.update(dict.fromkeys(free, done))
            try:
                await self._remove_due(free)
            finally:
                for key in free:
                    del self._busy[key]
                done.set_result(None)

    async def _drain(self, look: Look) -> bool:
        if look.due:
            await self.sweep(look.database, look.due)
        return bool(look.due)

    async def _remove_due(self, keys: list[bytes]) -> None:
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            page = keys[begin : begin + KEYS_AT_ONCE]
            for database in self.databases:
                while await self.sweep(database, page) >= self._batch:
                    pass
            if len(self.databases) > 1:
                await self.learn(page)
        # By the server's clock the deadline may be some µs away yet.
        early = [self._known.deadlines.get(key, math.inf) for key in keys]
        wait = min(early) - self._clock.now()
        if wait <= 0:
            await asyncio.sleep(0.0002)
