"""Limit the memory for all clients together: requests that the proxy holds, and records of requests under way.

Its tests: tests/test_hostile.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

ALWAYS_ALLOWED: Final = 64 * 1024
"""The proxy buffers this many bytes for a client even above the limit, so that ordinary requests always get through."""

RECOUNT_SECONDS: Final = 0.1
"""How often to count again while the server, or the client, has many bytes still to take."""


class HeldBudget:
    """The bytes of held requests, summed over all connections.

    Args:
        limit: bytes for all requests (`held_limit`).
        request_limit: bytes for a single request.

    Attributes:
        limit: bytes for all requests.
        largest: the largest single request that is buffered: the smaller of the two limits.
        names: the setting that `largest` comes from; both settings if they are equal.
        total: the current number of bytes.
        on_freed: called with the number of bytes that a connection has freed.
    """

    def __init__(self, limit: int, request_limit: int) -> None:
        self.limit = limit
        self.largest = min(limit, request_limit)
        limits = {"request_limit": request_limit, "held_limit": limit}
        self.names = " and ".join(name for name, size in limits.items() if size == self.largest)
        self.total = 0
        self.on_freed: Callable[[int], None] = lambda _: None

    def account(self, before: int, after: int, unsent: int = 0) -> bool:
        """Record a connection's new number of bytes.

        Args:
            before: bytes it held when last recorded.
            after: bytes that it holds now.
            unsent: how many of these are being sent: it is too late to refuse them.

        Returns:
            Whether the connection may hold that many.
        """
        self.note(before, after)
        return after - unsent <= ALWAYS_ALLOWED or after <= before or self.total <= self.limit

    def note(self, before: int, after: int) -> None:
        """Update the total, and report freed bytes."""
        self.total += after - before
        if before > after:
            self.on_freed(before - after)


class Holding:
    """The bytes held for one connection: waiting and unsent bytes, and records of requests under way.

    Args:
        budget: the budget shared by all connections.

    Attributes:
        bytes: the number of waiting and unsent bytes, as last recorded.
        beside: the size of the records, as last recorded.
    """

    __slots__ = ("_budget", "_recount", "_unread", "beside", "bytes")

    def __init__(self, budget: HeldBudget) -> None:
        self.bytes = self.beside = 0
        self._unread = 0  # bytes of replies that the client does not take
        self._budget = budget
        self._recount: asyncio.TimerHandle | None = None  # a timer to count unsent bytes again

    def account(self, waiting: int, unsent: int, again: Callable[[], object], beside: int = 0) -> bool:
        """Record the connection's bytes; return whether it may hold that many.

        Args:
            waiting: bytes that wait in the proxy.
            unsent: bytes being sent that the server, or the client, has not taken yet.
            again: called later to record the bytes again.
            beside: the size of the records of requests that were sent.
        """
        if unsent <= ALWAYS_ALLOWED:
            unsent = 0
        elif self._recount is None:
            # Only a timer is sure to notice that bytes were taken: `resume_writing` comes only after `pause_writing`.
            self._recount = asyncio.get_running_loop().call_later(RECOUNT_SECONDS, self._count, again)
        before, self.bytes, self.beside = self.bytes + self.beside, waiting + unsent, beside
        return self._budget.account(before, self.bytes + beside, unsent)

    def _count(self, again: Callable[[], object]) -> None:
        self._recount = None
        again()

    def note_unread(self, size: int) -> None:
        """Record how many bytes of replies the client leaves in the proxy; report those that are gone since. They do
        not count as held: while there are any, the proxy reads no more from the server."""
        if size < self._unread:
            self._budget.on_freed(self._unread - size)
        self._unread = size

    def end(self) -> None:
        """Release all bytes."""
        self.note_unread(0)
        self._budget.account(self.bytes + self.beside, 0)
        self.bytes = self.beside = 0
        if self._recount is not None:
            self._recount.cancel()
            self._recount = None
