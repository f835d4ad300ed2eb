"""Count the bytes of relayed connections: read the kernel's counts, which costs requests nothing.

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
"""Interval for reading the counts of open connections. Counts are also read when a connection closes."""

AT_ONCE: Final = 200
"""How many connections to read before other work runs; this takes 0.5 ms."""

_REFRESH_SECONDS: Final = 1.0

_TCP_INFO: Final = struct.Struct("=128xQ8xI52xQQ")
"""Part of Linux's `struct tcp_info` (4.19 and newer): bytes received, not sent, sent, retransmitted."""

IS_LINUX: Final = sys.platform.startswith("linux")

Side = Literal["client", "upstream"]


class Traffic:
    """Counts the bytes of all relayed TCP connections.

    The counts are TCP's: with TLS, encrypted bytes; plus one for a connection's end. The bytes of a peer that resets a
    TLS connection immediately may be missing. The kernel has no such count for Unix sockets.

    Args:
        metrics: the metrics to update.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._open: dict[asyncio.BaseTransport, _Connection] = {}
        self._refreshing = False

    def opened(self, side: Side, transport: asyncio.BaseTransport) -> None:
        """Start counting a connection."""
        connection = transport.get_extra_info("socket")
        if IS_LINUX and connection is not None and connection.family != socket.AF_UNIX:
            self._open[transport] = _Connection(side, connection)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._open)

    def look(self, transport: asyncio.BaseTransport) -> None:
        """Count the bytes since the last look."""
        connection = self._open.get(transport)
        if connection is None:
            return
        if transport.is_closing() and transport.get_extra_info("sslcontext") is not None:
            return  # the loop may have closed the socket, and another socket may have its descriptor
        counts = counts_of(connection.socket)
        if counts is None:
            return
        received, sent = counts
        metrics, side = self._metrics, connection.side
        metrics.received_bytes_total[side] += max(0, received - connection.received)
        metrics.sent_bytes_total[side] += max(0, sent - connection.sent)
        # The kernel counts retransmitted bytes late, so `sent` may fall for a moment. Never count a byte twice.
        connection.received, connection.sent = received, max(sent, connection.sent)

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection for the last time."""
        self.look(transport)
        self._open.pop(transport, None)

    def look_at_all(self) -> Iterator[None]:
        """Count the bytes on all open connections. Yield after each step, so that other work can run."""
        for number, transport in enumerate(list(self._open), 1):
            self.look(transport)
            if number % AT_ONCE == 0:
                yield

    def refresh(self) -> Iterator[None]:
        """Like `look_at_all`, for at most a second. Do nothing while another refresh is running.

        `run` counts the remaining connections.
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
        """Count at intervals until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            for _ in self.look_at_all():
                await asyncio.sleep(0)


def counts_of(connection: socket.socket) -> tuple[int, int] | None:
    """Return the bytes that a TCP connection received and that were written to it; None if unknown."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        received, unsent, sent, again = _TCP_INFO.unpack(info)
    except (OSError, ValueError, struct.error):
        return None  # the socket is closed, or the kernel is too old
    return received, sent + unsent - again


class _Connection:
    __slots__ = ("received", "sent", "side", "socket")

    def __init__(self, side: Side, connection: Any) -> None:
        self.side = side
        self.socket = connection
        self.received = self.sent = 0
