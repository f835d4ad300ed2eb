"""Check without reading whether a connection has ended, and how many bytes are undelivered.

Its tests: tests/test_ends.py.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import Final

_GONE: Final = select.POLLERR | select.POLLHUP | getattr(select, "POLLRDHUP", 0)
_FAILED: Final = select.POLLERR
_UNSENT: Final = 0x894B if sys.platform.startswith("linux") else termios.TIOCOUTQ  # SIOCOUTQNSD


def has_hung_up(transport: asyncio.BaseTransport) -> bool:
    """Return whether the peer has closed, or the connection was reset or closed here."""
    return _shows(transport, _GONE)


def has_failed(transport: asyncio.BaseTransport) -> bool:
    """Return whether the connection was reset, timed out or closed here.

    A mere close by the peer does not count: there may still be data to read.
    """
    return _shows(transport, _FAILED)


def undelivered(transport: asyncio.Transport) -> int:
    """Return how many bytes have not reached the peer's system yet (tcp(7)).

    For a Unix socket: the bytes in the transport. The peer can read all others even after this side has closed.
    """
    left = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return 0
    if connection.family == socket.AF_UNIX:
        return left
    with suppress(OSError):
        left += struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    return left


def untaken(transport: asyncio.Transport) -> int:
    """Return how many bytes the transport and the system still have to send.

    For a Unix socket: how many the peer has not read. TCP delivers sent bytes within a round trip.
    """
    left, connection = transport.get_write_buffer_size(), transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        unsent = _UNSENT if connection.family != socket.AF_UNIX else termios.TIOCOUTQ
        with suppress(OSError):
            left += struct.unpack("i", fcntl.ioctl(connection.fileno(), unsent, bytes(4)))[0]
    return left


def _shows(transport: asyncio.BaseTransport, events: int) -> bool:
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), events)
    return any(found & events for _, found in poll.poll(0))
