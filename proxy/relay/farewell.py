"""Close a client's connection after the last bytes, with time for the client to read them.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

from proxy.relay.budget import Holding
from proxy.relay.hangup import undelivered
from proxy.relay.upstream import LINGER_SECONDS

FAREWELL_SECONDS: Final = 1.0
"""How often to check whether a client has taken the last bytes; then its connection is closed."""

LEAST: Final = 64 * 1024
"""Bytes that a client must take in each `LINGER_SECONDS`; otherwise its connection is closed."""


class Farewell:
    """Closes a connection so that the client can read the last bytes: a close with unread requests causes a reset.

    Args:
        transport: the connection's transport.
        after: runs a function after a number of seconds.
        holding: counts the replies that the client has not read.
    """

    def __init__(
        self, transport: asyncio.Transport, after: Callable[[float, Callable[[], None]], None], holding: Holding
    ) -> None:
        self._transport = transport
        self._after = after
        self._holding = holding
        self._undelivered = sys.maxsize  # bytes left when the client last made enough progress
        self._looks_in_vain = 0

    def say(self, line: bytes, *, ended: bool) -> None:
        """Send a last line, which may be empty, and close; `ended`: whether the client has closed its side."""
        transport = self._transport
        if line:
            transport.write(line)
        self._count()
        has_written = not transport.get_write_buffer_size()  # if not, a slow client may need more time to read
        if transport.can_write_eof():
            transport.write_eof()
        elif has_written:
            transport.close()  # TLS announces the close, and keeps reading until the peer closes
        if ended and has_written:
            transport.close()
            self._after(LINGER_SECONDS, transport.abort)
        else:
            self._after(FAREWELL_SECONDS, self._look)

    def _count(self) -> None:
        self._holding.account(0, self._transport.get_write_buffer_size(), self._count)

    def _look(self) -> None:
        """Close when everything has been delivered, or if the client takes hardly anything."""
        transport = self._transport
        left = undelivered(transport)
        self._looks_in_vain += 1
        if left <= self._undelivered - LEAST:
            self._undelivered, self._looks_in_vain = left, 0
        if left and self._looks_in_vain < LINGER_SECONDS / FAREWELL_SECONDS:
            self._after(FAREWELL_SECONDS, self._look)
            return
        transport.close()
        if not transport.can_write_eof() and not transport.get_write_buffer_size():
            transport.abort()  # TLS would wait for the peer's close, which may never come
            return
        self._after(LINGER_SECONDS, transport.abort)
