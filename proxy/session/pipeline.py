"""What one connection has sent and the server may not have run: others may have to wait for it.

Its tests: tests/test_streams.py.
"""

from __future__ import annotations

from collections.abc import Callable

Passed = Callable[[], bool]
"""Returns whether a sign has come."""


class Sender:
    """Sends a connection's requests, and can put a sign behind them. This base class stands for one that has sent
    nothing."""

    def ask(self) -> Passed | None:
        """Put a sign behind all that has been sent; return None when none can be put there at present."""
        return None

    def before(self) -> Passed | None:
        """In a transaction, return how to see whether everything sent before it has been answered; None if that cannot
        be seen.

        What is queued does not run until EXEC, so nobody needs to wait for it.
        """
        return None

    def heard(self) -> int | None:
        """Return a number that changes when the server says something on the connection, while a sign is awaited.

        None if nobody counts it.
        """
        return 0


class Pipeline:
    """The requests of one connection.

    Attributes:
        sender: sends them.
        mark: stands for the connection, and keeps nothing of it.
        given_up: what `sender.heard` gave when those who waited for the connection last gave up; -1 before.
    """

    __slots__ = ("given_up", "mark", "sender")

    def __init__(self) -> None:
        self.sender = Sender()
        self.mark = object()
        self.given_up: int | None = -1
