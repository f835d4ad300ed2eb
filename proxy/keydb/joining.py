"""Join the protocol between proxies during an import, to announce the prefixes that get deadlines.

Its tests: tests/test_import.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import RedisError

from proxy.coverage.coverage import Coverage, covers_any
from proxy.ending import end
from proxy.proxies.announcer import PUSHED, Proxies
from proxy.proxies.listening import listen
from proxy.scripts.naming import Names
from proxy.upstream.endpoint import Upstream

_ATTEMPTS: Final = 3


class NotToldError(Exception):
    """Other proxies could not be notified of the prefixes that get deadlines."""


async def _unasked(_push: list[Any]) -> object:
    """Ignore a message about changed keys: this connection has not requested such messages."""
    return PUSHED


class Membership:
    """Membership of this process among the proxies, for the duration of the context.

    Args:
        upstream: the server.
        names: the names of the proxies' own keys and channels.
        patience: seconds that the server may take to answer.

    Raises (on entry):
        RedisError, OSError, TimeoutError: the server cannot be reached, or refuses.
    """

    def __init__(self, upstream: Upstream, names: Names, patience: float) -> None:
        self._coverage = Coverage()
        self._coverage.loaded = True
        self._keys: list[bytes] = []  # prefixes not yet announced
        self._listed: dict[int, Coverage] = {}  # database → the prefixes listed in it
        self._proxies = Proxies(self._coverage, names, patience, lambda: None)
        self._connection: Any = upstream.listening_connection(_unasked, self._proxies.received)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            await self._connection.connect()
            await self._proxies.begin(self._connection)
            if self._proxies.refused:
                raise RedisError("NOPERM: no permission for the channels between proxies")
        except BaseException:
            await self._connection.disconnect(nowait=True)
            raise
        self._tasks = [
            asyncio.create_task(part) for part in (listen(self._connection, self._proxies), self._proxies.keep())
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._proxies.leave()
        await end(self._tasks)
        self._proxies.end()
        await self._connection.disconnect(nowait=True)

    def begin(self, database: int, keys: Iterable[bytes]) -> list[bytes]:
        """Cover keys that are about to get deadlines.

        Returns:
            The prefixes, with their marks. List them in the keys' database before calling `tell`.
        """
        listed = self._listed.setdefault(database, Coverage())
        new = [key for key in keys if not listed.is_certain(key)]
        if not new:
            return []
        self._keys += new
        self._coverage.begin(new, self)
        entries = [entry for entry in self._coverage.entries if covers_any([entry], new)]
        listed.add(entries)
        return entries

    def may_begin(self, keys: Iterable[bytes]) -> bool:
        """Return whether these keys may get deadlines now, without another announcement."""
        if any(task.done() for task in self._tasks):
            return False  # the connection to other proxies is lost: `tell` raises the reason
        return not self._coverage.unconfirmed(keys)

    async def tell(self) -> None:
        """Wait until all proxies cover the keys passed to `begin`.

        Raises:
            NotToldError: other proxies could not be notified.
            RedisError, OSError, TimeoutError: the connection was lost.
        """
        for _ in range(_ATTEMPTS):
            missing = self._coverage.unconfirmed(self._keys)
            if not missing and not any(task.done() for task in self._tasks):
                self._keys.clear()
                return
            telling = asyncio.create_task(self._proxies.announce(self._coverage.begin(missing, self)))
            try:
                await asyncio.wait([telling, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end([telling])
            for task in self._tasks:
                if task.done():
                    task.result()
                    raise RedisError("the connection was lost")
        if self._coverage.unconfirmed(self._keys):
            raise NotToldError
