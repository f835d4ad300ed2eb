"""Bound the bytes of requests that the proxy buffers for all clients together.

Its tests: tests/test_hostile.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ALWAYS_ALLOWED: Final = 64 * 1024
"""Bytes that each client may make the proxy hold, whatever others do: so ordinary requests always get through."""


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
