"""Sent requests of one connection that the server may not have run yet: other connections may have to wait for them.

Its tests: tests/test_streams.py.
"""

from __future__ import annotations

from collections.abc import Callable

Passed = Callable[[], bool]
"""Returns whether the reply to a sign has come."""


class Sender:
    """Sends a connection's requests, and can put a sign after them. This base class has sent nothing."""

    def ask(self) -> Passed | None:
        """Put a sign after everything sent; return None if that is not possible now."""
        return None

    def before(self) -> Passed | None:
        """In a transaction, return a function that returns whether everything before MULTI was answered.

        None if unknown.

        Queued requests do not run before EXEC, so others need not wait for them.
        """
        return None

    def heard(self) -> int | None:
        """Return a number that changes whenever the server sends something while a sign is outstanding.

        None if that is not counted.
        """
        return 0


class Pipeline:
    """The requests of one connection.

    Attributes:
        sender: sends them.
        mark: identifies the connection without keeping it alive.
        given_up: the value of `sender.heard` when waiters for the connection last gave up; -1 if they never have.
    """

    __slots__ = ("given_up", "mark", "sender")

    def __init__(self) -> None:
        self.sender = Sender()
        self.mark = object()
        self.given_up: int | None = -1
