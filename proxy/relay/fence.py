"""Track the connections to one server, so that all can be closed at once when another server becomes the upstream.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

from typing import Protocol


class Fenced(Protocol):
    """A connection to the server."""

    def abort(self) -> None:
        """Close at once."""


class Fence:
    """The connections to one server that serve clients, including clients that have gone.

    Attributes:
        closed: whether the server is no longer the upstream.
    """

    def __init__(self) -> None:
        self._connections: set[Fenced] = set()
        self.closed = False

    def admit(self, connection: Fenced) -> bool:
        """Add a connection; return False if the fence is closed."""
        if not self.closed:
            self._connections.add(connection)
        return not self.closed

    def dismiss(self, connection: Fenced) -> None:
        """Note that a connection has ended."""
        self._connections.discard(connection)

    def close(self) -> int:
        """Close all connections, and refuse new ones; return how many there were."""
        self.closed = True
        count = len(self._connections)
        for connection in list(self._connections):
            connection.abort()
        return count
