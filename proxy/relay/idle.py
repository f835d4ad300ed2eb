"""Close clients that have been idle too long. The kernel records when they last sent or received data.

Its tests: tests/test_limits.py.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from proxy.logs import Seldom

log = structlog.get_logger("proxy.idle")

_AT_ONCE: Final = 200
"""Connections to check before other work gets its turn: they take 0.3 ms."""

_TCP_INFO: Final = struct.Struct("=44xI4xI")
"""Two fields of Linux's `struct tcp_info`: ms since data was last sent, and since it was last received."""


class Abandonable(Protocol):
    """A connection that can be closed."""

    def abandon(self) -> None:
        """Close without waiting for replies."""


class IdleWatch:
    """Closes connections that have had no traffic for a time.

    One timer serves all of them, at no cost per request: for every TCP connection the kernel records when data was last
    sent and received. A connection is closed between one and one and a quarter timeouts after its last byte. For Unix
    sockets there is no such record, so they are not closed.

    Args:
        timeout: in seconds.
        clients: returns the current client connections with their sockets.
    """

    def __init__(self, timeout: float, clients: Callable[[], Sequence[tuple[Abandonable, socket.socket]]]) -> None:
        self._timeout = timeout
        self._clients = clients
        self._closed = Seldom(log.info, "idle clients dropped")

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(self._timeout / 4)
            for number, (connection, client) in enumerate(self._clients(), 1):
                if (silence(client) or 0) > self._timeout:
                    connection.abandon()
                    self._closed(idle_timeout=self._timeout)
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)


def silence(client: socket.socket) -> float | None:
    """Return the seconds without data on a TCP connection; None if unknown."""
    if client.family == socket.AF_UNIX:
        return None
    try:
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None  # the connection has ended
    sent, received = _TCP_INFO.unpack(info)
    return min(sent, received) / 1000  # type: ignore[no-any-return]
