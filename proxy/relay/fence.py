"""Keeps together the connections to one server, so that all can be ended at once when it is the upstream no more."""

from __future__ import annotations

from typing import Protocol


class Fenced(Protocol):
    """A connection to the server."""

    def abort(self) -> None:
        """Close at once."""


class Fence:
    """The connections for clients to one server, those too whose clients have gone.

    Attributes:
        closed: whether it is the upstream no more.
    """

    def __init__(self) -> None:
        self._connections: set[Fenced] = set()
        self.closed = False

    def admit(self, connection: Fenced) -> bool:
        """Take a connection in; return False when it comes too late."""
        if not self.closed:
            self._connections.add(connection)
        return not self.closed

    def dismiss(self, connection: Fenced) -> None:
        """Note that a connection has ended."""
        self._connections.discard(connection)

    def close(self) -> int:
        """End all connections, and those to come; return how many there were."""
        self.closed = True
        count = len(self._connections)
        for connection in list(self._connections):
            connection.abort()
        return count
