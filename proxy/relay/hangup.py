"""Query the system about a connection: whether it has ended, what is undelivered, and what was left unread.

Its tests: tests/test_ends.py.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_PART: Final = 64 * 1024
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

    For a Unix socket only bytes in the transport count: the peer can read all others even after a close here.
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

    Sent bytes do not count: TCP delivers them within a round trip. Over a Unix socket, those that are unread do.
    """
    left, connection = transport.get_write_buffer_size(), transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        unsent = _UNSENT if connection.family != socket.AF_UNIX else termios.TIOCOUTQ
        with suppress(OSError):
            left += struct.unpack("i", fcntl.ioctl(connection.fileno(), unsent, bytes(4)))[0]
    return left


def left_unread(transport: asyncio.BaseTransport) -> Iterator[bytes]:
    """Yield what had been received, but not read, when a connection was reset; `_PART` bytes at a time."""
    with suppress(OSError), socket_of(transport) as rest:
        rest.setblocking(False)
        while part := rest.recv(_PART):
            yield part


@contextmanager
def socket_of(transport: asyncio.BaseTransport) -> Iterator[socket.socket]:
    """Yield a connection's socket for operations that the loop lacks.

    It uses the existing file descriptor: the process may have reached its limit of open files.

    Raises:
        OSError: the socket is closed.
    """
    number = transport.get_extra_info("socket").fileno()
    if number < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    connection = socket.socket(fileno=number)
    try:
        yield connection
    finally:
        connection.detach()  # the loop closes it


def _shows(transport: asyncio.BaseTransport, events: int) -> bool:
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), events)
    return any(found & events for _, found in poll.poll(0))
