"""The other workers, as seen by a process that accepts clients. A proxy of one process has no others.

Its tests: tests/test_workers.py.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeAlias

Take: TypeAlias = Callable[[socket.socket, int], None]
"""Receives a client from another worker, with the number of the listener that accepted it."""


class Others:
    """The other workers, for a proxy of one process: there are none.

    Args:
        limit: maximum number of clients.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def begin(self, take: Take) -> None:
        """Begin to accept clients from other workers."""

    def end(self) -> None:
        """Stop accepting clients from other workers. Harmless if not begun."""

    def has_room(self, clients: int) -> bool:
        """Return whether there is room for one more client.

        Args:
            clients: how many this process has.
        """
        return clients < self._limit

    def note(self, clients: int) -> None:
        """Record how many clients this process has."""

    def hand_over(self, client: socket.socket, listener: int, clients: int) -> bool:
        """Hand a client over to a worker that has fewer clients.

        Args:
            client: a client that has just been accepted.
            listener: the number of the listener that accepted it.
            clients: how many this process has.

        Returns:
            Whether the client was handed over. If so, it no longer belongs to this process.
        """
        return False
