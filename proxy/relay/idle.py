"""Close clients that have been idle for too long: the kernel knows when they last sent or received data.

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
"""Connections that are looked at before others get their turn: 0.3 ms."""

_TCP_INFO: Final = struct.Struct("=44xI4xI")
"""The two times that count in Linux's `struct tcp_info`: ms since data was last sent, and last received."""


class Abandonable(Protocol):
    """A connection that can be closed."""

    def abandon(self) -> None:
        """Close without waiting for replies."""


class IdleWatch:
    """Close connections on which no byte has moved for a time.

    One timer serves all of them, and none of what it needs is done per request: the kernel notes the times of the last
    data sent and received on every TCP connection. A connection is closed between one and one and a quarter timeouts
    after its last byte. Connections on Unix sockets have no such notes and are not closed.

    Args:
        timeout: seconds.
        clients: returns the clients' connections with their sockets, as they are at that moment.
    """

    def __init__(self, timeout: float, clients: Callable[[], Sequence[tuple[Abandonable, socket.socket]]]) -> None:
        self._timeout = timeout
        self._clients = clients
        self._closed = Seldom(log.info, "idle clients closed")

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
    """Return for how many seconds no data has moved on a TCP connection; None where that is not known."""
    if client.family == socket.AF_UNIX:
        return None
    try:
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None  # it has ended
    sent, received = _TCP_INFO.unpack(info)
    return min(sent, received) / 1000  # type: ignore[no-any-return]
