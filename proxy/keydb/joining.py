"""Takes part in the protocol between proxies while deadlines are imported, and tells them of keys that get some.

Every proxy in front of the server has to know a key before it gets its first deadline. This process judges no requests,
so it need not know which keys have deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Set
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import RedisError

from proxy.ending import end
from proxy.proxies.announcer import PUSHED, Proxies
from proxy.proxies.listening import listen
from proxy.scripts.naming import Names
from proxy.session.known import FRESH_SECONDS, KnownKeys, lease_clock
from proxy.upstream.endpoint import Upstream

_ATTEMPTS: Final = 3


class NotToldError(Exception):
    """Other proxies could not be told of keys."""


class _OnTheirWay(KnownKeys):
    """The keys that are about to get deadlines; what other proxies announce does not matter here.

    Attributes:
        keys: the keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loaded = True
        self.keys: tuple[bytes, ...] = ()
        self._told: dict[bytes, float] = {}

    def mark_announced(self, keys: Collection[bytes], near: Set[bytes] = frozenset()) -> None:
        """Take no notice: no requests are judged here."""

    def outstanding(self) -> list[bytes]:
        """Return the keys that a proxy that begins now has to know."""
        return list(self.keys)

    def note_announced(self, keys: Iterable[bytes], moment: float) -> None:
        """Note that all proxies know these keys; the announcement was published at that moment (`lease_clock`)."""
        self._told.update(dict.fromkeys(keys, moment))

    def forget_announced(self) -> None:
        """Have every key announced anew: others may have come meanwhile that have not heard."""
        self._told.clear()

    def begin(self, keys: Iterable[bytes]) -> None:
        """Turn to other keys."""
        self.keys = tuple(dict.fromkeys(keys))
        told = self._told
        self._told = {key: told[key] for key in self.keys if key in told}

    def unannounced(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those keys of which other proxies have to be told still, or again."""
        self.look()  # this process may have been stopped, and others may have come
        if not self.shared:
            return []
        now = lease_clock()
        if now >= self.trusted_until:
            return list(keys)
        return [key for key in keys if self._told.get(key, -1.0) < now - FRESH_SECONDS]


async def _unasked(_push: list[Any]) -> object:
    """Take no notice of changed keys: this connection does not ask for them."""
    return PUSHED


class Membership:
    """This process's part among the proxies, as long as the context lasts.

    Args:
        upstream: the server.
        names: the names of the proxies' own keys and channels.
        patience: seconds that the server may take to answer.

    Raises (on entry):
        RedisError, OSError, TimeoutError: the server cannot be reached, or refuses.
    """

    def __init__(self, upstream: Upstream, names: Names, patience: float) -> None:
        self._known = _OnTheirWay()
        self._proxies = Proxies(self._known, names, patience, lambda: None)
        self._connection: Any = upstream.listening_connection(_unasked, self._proxies.received)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            await self._connection.connect()
            await self._proxies.begin(self._connection)
            if self._proxies.refused:
                raise RedisError("NOPERM: the channels by which proxies tell each other of keys")
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

    def turn_to(self, keys: Iterable[bytes]) -> None:
        """Note which keys are about to get deadlines; those of before have them."""
        self._known.begin(keys)

    def may_begin(self, keys: Iterable[bytes]) -> bool:
        """Return whether these keys may get deadlines at this moment, without another word."""
        if any(task.done() for task in self._tasks):
            return False  # nobody hears others any more: `tell` says why
        return not self._known.unannounced(keys)

    async def tell(self) -> None:
        """Have all proxies know the keys that were turned to.

        Raises:
            NotToldError: they could not be told.
            RedisError, OSError, TimeoutError: the connection was lost.
        """
        for _ in range(_ATTEMPTS):
            missing = self._known.unannounced(self._known.keys)
            if not missing and not any(task.done() for task in self._tasks):
                return
            telling = asyncio.create_task(self._proxies.announce(tuple(missing)))
            try:
                await asyncio.wait([telling, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end([telling])
            for task in self._tasks:
                if task.done():
                    task.result()
                    raise RedisError("the connection was lost")
        if self._known.unannounced(self._known.keys):
            raise NotToldError
