"""Close a client's connection after its last words, leaving it time to read them.

Its tests: tests/test_lifecycle.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

from proxy.relay.hangup import undelivered
from proxy.relay.upstream import LINGER_SECONDS

FAREWELL_SECONDS: Final = 1.0
"""How often to check whether a client has taken its last words, after which its connection is closed."""


class Farewell:
    """Closes a connection so that the client can read its last words: closing with unread requests would reset it.

    Args:
        transport: the connection's transport.
        after: runs a function after a number of seconds.
    """

    def __init__(self, transport: asyncio.Transport, after: Callable[[float, Callable[[], None]], None]) -> None:
        self._transport = transport
        self._after = after
        self._undelivered = sys.maxsize  # bytes not taken by the client at the last look
        self._looks_in_vain = 0

    def say(self, line: bytes, *, ended: bool) -> None:
        """Send last words, possibly none, and close; `ended`: whether the client has ended its side."""
        transport = self._transport
        if line:
            transport.write(line)
        has_written = not transport.get_write_buffer_size()  # otherwise a slow client may exceed the linger time
        if transport.can_write_eof():
            transport.write_eof()
        elif has_written:
            transport.close()  # TLS announces the close, and reads on until the peer closes
        if ended and has_written:
            transport.close()
            self._after(LINGER_SECONDS, transport.abort)
        else:
            self._after(FAREWELL_SECONDS, self._look)

    def _look(self) -> None:
        """Close when everything has been delivered, or if the client takes no more."""
        transport = self._transport
        left, before = undelivered(transport), self._undelivered
        self._undelivered = left
        self._looks_in_vain = self._looks_in_vain + 1 if left >= before else 0
        if left and self._looks_in_vain < LINGER_SECONDS / FAREWELL_SECONDS:
            self._after(FAREWELL_SECONDS, self._look)
            return
        transport.close()
        if not transport.can_write_eof() and not transport.get_write_buffer_size():
            transport.abort()  # TLS would wait for the peer's close, which may never come
            return
        self._after(LINGER_SECONDS, transport.abort)
