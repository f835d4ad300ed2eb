"""Track which server is the upstream. Work that began at one server must not continue at another.

Its tests: tests/test_sentinel_decisions.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from redis.exceptions import ConnectionError as RedisConnectionError

from proxy.ending import end
from proxy.upstream.address import Address

T = TypeVar("T")


class MovedError(RedisConnectionError):
    """The work cannot be completed: the server where it began is no longer the upstream."""


class Stay:
    """The time during which one server, in one role, is the upstream.

    Attributes:
        address: the server's address; None for a Unix socket, or while unknown.
        as_primary: whether the server has reported that it is a primary.
        ended: why the stay is over; None while it lasts.
    """

    def __init__(self, address: Address | None) -> None:
        self.address = address
        self.as_primary = False
        self.ended: str | None = None
        self._waiting: set[asyncio.Future[None]] = set()

    def end(self, why: str) -> None:
        """End this stay, and cancel all work that depends on it."""
        self.ended = why
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def check(self) -> None:
        """Raise `MovedError` if the stay is over."""
        if self.ended is not None:
            raise MovedError(self.ended)

    async def hold(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work; cancel it when this stay ends.

        Raises:
            MovedError: the stay is over, and the work was cancelled.
        """
        task = asyncio.ensure_future(work)
        try:
            await self._until_ended([task], None)
        finally:
            await end([task])
        self.check()
        return task.result()

    async def rest(self, seconds: float) -> None:
        """Sleep, at most until this stay ends."""
        await self._until_ended([], seconds)

    async def _until_ended(self, tasks: list[asyncio.Task[Any]], seconds: float | None) -> None:
        if self.ended is not None:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait([waiter, *tasks], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(waiter)


class Severable(Protocol):
    """A connection to the server."""

    def sever(self) -> None:
        """Close immediately, if the stay of the connection has ended."""


class Whereabouts:
    """The current stay, and its changes.

    Args:
        address: the server's address; None for a Unix socket.
        sought: whether Sentinels must find the server first.

    Attributes:
        stay: the current stay.
        missing: why the server is not known; None if it is.
        on_move: called with the old stay when another stay has begun.
        on_read_only: called when the server refuses writes, as a replica does.
    """

    def __init__(self, address: Address | None, *, sought: bool = False) -> None:
        self.stay = Stay(address)
        self.missing: str | None = "no Sentinel has answered yet" if sought else None
        self.on_move: Callable[[Stay], None] = lambda _: None
        self.on_read_only: Callable[[], None] = lambda: None
        self._tried = not sought
        self._waiting: set[asyncio.Future[None]] = set()
        self._connections: WeakSet[Severable] = WeakSet()

    def note(self, connection: Severable) -> None:
        """Register a connection, which is severed whenever a stay ends."""
        self._connections.add(connection)

    def move(self, address: Address | None, why: str) -> None:
        """Begin another stay: with another server, or the same one in another role.

        Args:
            address: where the server is.
            why: the reason, for the errors of work that is cancelled at the old server.
        """
        before, self.stay = self.stay, Stay(address)
        self.missing = None
        before.end(why)
        for connection in list(self._connections):
            connection.sever()
        self.on_move(before)
        self.tried()

    def tried(self) -> None:
        """Note that the first attempt to find the server is over."""
        self._tried = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def found(self, seconds: float) -> Stay:
        """Return the current stay, once the server has been found or the first attempt is over.

        Args:
            seconds: how long to wait for the first attempt.

        Raises:
            RedisConnectionError: the server has not been found.
        """
        if not self._tried:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=seconds)
            finally:
                self._waiting.discard(waiter)
        if self.missing is not None:
            raise RedisConnectionError(self.missing)
        return self.stay
