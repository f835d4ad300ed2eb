"""Track the connections to one server, so that all can be closed when another server becomes the upstream.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from proxy.metrics.traffic import Traffic


class Fenced(Protocol):
    """A connection to the server."""

    def abort(self) -> None:
        """Close at once."""


class Fence:
    """The connections to one server that serve clients, or deliver the requests of clients that have gone.

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
        """Record that a connection has ended."""
        self._connections.discard(connection)

    def close(self) -> int:
        """Close all connections and refuse new ones; return how many there were."""
        self.closed = True
        count = len(self._connections)
        for connection in list(self._connections):
            connection.abort()
        return count


class Membership:
    """One connection's membership in a fence, which also counts its bytes.

    Args:
        fence: keeps the connections to one server together.
        traffic: counts bytes.

    Attributes:
        admitted: whether the connection is in the fence.
    """

    __slots__ = ("_fence", "_traffic", "admitted")

    def __init__(self, fence: Fence, traffic: Traffic) -> None:
        self._fence = fence
        self._traffic = traffic
        self.admitted = False

    @property
    def closed(self) -> bool:
        """Whether the server is no longer the upstream."""
        return self._fence.closed

    def begin(self, connection: Fenced, transport: asyncio.Transport) -> bool:
        """Add the connection; if the fence is closed, close the transport and return False."""
        self.admitted = self._fence.admit(connection)
        if self.admitted:
            self._traffic.opened("upstream", transport)
        else:
            transport.abort()
        return self.admitted

    def look(self, transport: asyncio.Transport) -> None:
        """Count the bytes up to now."""
        self._traffic.look(transport)

    def end(self, connection: Fenced, transport: asyncio.Transport) -> None:
        """Remove the connection."""
        self._traffic.closed(transport)
        self._fence.dismiss(connection)
