"""See whether the other side of a connection has closed, while nothing is read from it."""

from __future__ import annotations

import asyncio
import select
from typing import Final

_GONE: Final = select.POLLERR | select.POLLHUP | getattr(select, "POLLRDHUP", 0)


def has_hung_up(transport: asyncio.BaseTransport) -> bool:
    """Return whether the other side has closed, or the connection has been reset or closed here."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), _GONE)
    return bool(poll.poll(0))
