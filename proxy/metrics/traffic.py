"""Count the bytes of relayed connections by asking the kernel, which counts them anyway, so that no request pays for
it.

Its tests: tests/test_admin.py.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

from proxy.metrics.table import Metrics

EVERY_SECONDS: Final = 10.0
"""How often open connections are looked at. Those that end are looked at then."""

AT_ONCE: Final = 200
"""Connections that are looked at before others get their turn: 0.5 ms."""

_REFRESH_SECONDS: Final = 1.0

_TCP_INFO: Final = struct.Struct("=128xQ8xI52xQQ")
"""Of Linux's `struct tcp_info` (4.19 and newer): bytes received, bytes not sent yet, bytes sent, of them once more."""

IS_LINUX: Final = sys.platform.startswith("linux")

Side = Literal["client", "upstream"]


class Traffic:
    """The bytes of all relayed TCP connections.

    TCP's own count: with TLS that of the encrypted bytes, one more for a connection's end. What a peer sends that
    resets a TLS connection at once may be missing. The kernel has no such count for Unix sockets.

    Args:
        metrics: where to count.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._open: dict[asyncio.BaseTransport, _Connection] = {}
        self._refreshing = False

    def opened(self, side: Side, transport: asyncio.BaseTransport) -> None:
        """Begin to count a connection."""
        connection = transport.get_extra_info("socket")
        if IS_LINUX and connection is not None and connection.family != socket.AF_UNIX:
            self._open[transport] = _Connection(side, connection)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def look(self, transport: asyncio.BaseTransport) -> None:
        """Count what has passed since the last look."""
        connection = self._open.get(transport)
        if connection is None:
            return
        if transport.is_closing() and transport.get_extra_info("sslcontext") is not None:
            return  # the loop may have closed the socket, and its number may be another's by now
        counts = counts_of(connection.socket)
        if counts is None:
            return
        received, sent = counts
        metrics, side = self._metrics, connection.side
        metrics.received_bytes_total[side] += max(0, received - connection.received)
        metrics.sent_bytes_total[side] += max(0, sent - connection.sent)
        # What is sent once more is told a little later than that it was sent: no byte counts twice for that.
        connection.received, connection.sent = received, max(sent, connection.sent)

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection for the last time."""
        self.look(transport)
        self._open.pop(transport, None)

    def look_at_all(self) -> Iterator[None]:
        """Count what has passed on all open connections, as many at a step as others can wait for."""
        for number, transport in enumerate(list(self._open), 1):
            self.look(transport)
            if number % AT_ONCE == 0:
                yield

    def refresh(self) -> Iterator[None]:
        """Do the same for somebody who waits: for a second at most, and not while it is being done for somebody else.

        What is left is counted by `run`.
        """
        if self._refreshing:
            return
        self._refreshing = True
        end = time.monotonic() + _REFRESH_SECONDS
        try:
            for _ in self.look_at_all():
                yield
                if time.monotonic() >= end:
                    return
        finally:
            self._refreshing = False

    async def run(self) -> None:
        """Count now and then for ever; ends when cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            for _ in self.look_at_all():
                await asyncio.sleep(0)


def counts_of(connection: socket.socket) -> tuple[int, int] | None:
    """Return how many bytes a TCP connection has received, and been given to send; None where that is not known."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        received, unsent, sent, again = _TCP_INFO.unpack(info)
    except (OSError, ValueError, struct.error):
        return None  # it has ended, or been closed; or the kernel is older
    return received, sent + unsent - again


class _Connection:
    __slots__ = ("received", "sent", "side", "socket")

    def __init__(self, side: Side, connection: Any) -> None:
        self.side = side
        self.socket = connection
        self.received = self.sent = 0
