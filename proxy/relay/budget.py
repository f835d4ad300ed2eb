"""Bound the bytes of requests that the proxy buffers for all clients together.

Its tests: tests/test_hostile.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

ALWAYS_ALLOWED: Final = 64 * 1024
"""Bytes that each client may make the proxy hold, whatever others do: so ordinary requests always get through."""

RECOUNT_SECONDS: Final = 0.1
"""How often to see whether the server has taken what it was sent, where that is much."""


class HeldBudget:
    """The bytes of held requests, over all connections.

    Args:
        limit: how many there may be (`held_limit`).
        request_limit: how many of a single request.

    Attributes:
        limit: the same.
        largest: the size up to which a single request is buffered: the smaller of the two limits.
        names: the setting that bounds it; both where they are equal.
        total: how many there are.
        on_freed: is called with the number of bytes that a connection has freed.
    """

    def __init__(self, limit: int, request_limit: int) -> None:
        self.limit = limit
        self.largest = min(limit, request_limit)
        limits = {"request_limit": request_limit, "held_limit": limit}
        self.names = " and ".join(name for name, size in limits.items() if size == self.largest)
        self.total = 0
        self.on_freed: Callable[[int], None] = lambda _: None

    def account(self, before: int, after: int, unsent: int = 0) -> bool:
        """Take a connection's new figure into account.

        Args:
            before: bytes that it held when last accounted.
            after: bytes that it holds now.
            unsent: how many of them are on their way to the server, and cannot be refused any more.

        Returns:
            Whether that is still allowed.
        """
        self.note(before, after)
        return after - unsent <= ALWAYS_ALLOWED or after <= before or self.total <= self.limit

    def note(self, before: int, after: int) -> None:
        """Update the total, and report what has become free."""
        self.total += after - before
        if before > after:
            self.on_freed(before - after)


class Holding:
    """What one connection holds of its requests, as last accounted.

    Args:
        budget: of all connections.

    Attributes:
        bytes: how many.
    """

    __slots__ = ("_budget", "_recount", "bytes")

    def __init__(self, budget: HeldBudget) -> None:
        self.bytes = 0
        self._budget = budget
        self._recount: asyncio.TimerHandle | None = None  # sees whether the server has taken what it was sent

    def account(self, waiting: int, unsent: int, again: Callable[[], object]) -> bool:
        """Account for it; return whether that is still allowed.

        Args:
            waiting: bytes that wait in the proxy.
            unsent: bytes that are on their way, and that the server has not taken.
            again: accounts for it anew.
        """
        if unsent <= ALWAYS_ALLOWED:
            unsent = 0
        elif self._recount is None:
            # The loop tells when it has been taken only where it has told that it is much.
            self._recount = asyncio.get_running_loop().call_later(RECOUNT_SECONDS, self._count, again)
        before, self.bytes = self.bytes, waiting + unsent
        return self._budget.account(before, self.bytes, unsent)

    def _count(self, again: Callable[[], object]) -> None:
        self._recount = None
        again()

    def end(self) -> None:
        """Hold nothing any more."""
        self._budget.account(self.bytes, 0)
        self.bytes = 0
        if self._recount is not None:
            self._recount.cancel()
