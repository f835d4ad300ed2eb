"""Query what the server does for one of the proxy's connections, such as whether a request blocks.

Its tests: tests/test_vigil.py.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from redis.exceptions import RedisError, ResponseError

REST_SECONDS: Final = 1 / 16_000_000
"""How long to wait before the next CLIENT LIST, in seconds per byte of the last reply. The server needs a twentieth of
that time to make the list, some ms for thousands of clients, and serves nobody meanwhile."""

REFUSED_SECONDS: Final = 60.0
"""How long to send no more queries after the server has refused one."""

_STATE: Final = re.compile(rb" flags=(\S*) .* obl=(\d+) oll=(\d+) ")


class Doing(Enum):
    """What a server does for a connection."""

    BLOCKED = "a request blocks, or the server holds the client up"
    REPLYING = "it has replies that its system does not take yet"
    NOTHING = "all that has arrived has run, and the last replies are under way"
    UNKNOWN = "the server does not say, or knows the connection by another address"
    SILENT = "the server did not answer the proxy in time, or runs a script (BUSY)"


def near_end_of(transport: asyncio.BaseTransport) -> bytes | None:
    """Return the local address of a TCP connection, in the format of CLIENT LIST; None if it is not TCP."""
    near = transport.get_extra_info("sockname")
    if not isinstance(near, tuple):
        return None
    host, port = near[:2]
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()


def doing_in(line: bytes) -> Doing:
    """Return what a server does for a connection, by its line in CLIENT LIST."""
    state = _STATE.search(line)
    if state is None:
        return Doing.UNKNOWN
    if b"b" in state[1]:
        return Doing.BLOCKED
    return Doing.NOTHING if state[2] == state[3] == b"0" else Doing.REPLYING


class Inspection:
    """Queries a server for the state of connections. One request serves all queries made at the same time.

    Args:
        list_clients: returns the reply to CLIENT LIST in limited time. Raises RedisError, OSError or TimeoutError.
    """

    def __init__(self, list_clients: Callable[[], Awaitable[bytes]]) -> None:
        self._list = list_clients
        self._one_at_a_time = asyncio.Lock()
        self._next: asyncio.Task[dict[bytes, bytes] | None] | None = None  # a query that has not been sent yet
        # When the next list may be requested: after a pause to spare the server, and after a refusal.
        self._rested = self._asks_again = 0.0

    async def doing(self, near: bytes | None) -> Doing:
        """Return, in limited time, what the server does for a connection at some moment after this call.

        Args:
            near: the connection's local address, as `near_end_of` returns it.
        """
        loop = asyncio.get_running_loop()
        if near is None or loop.time() < self._asks_again:
            return Doing.UNKNOWN
        if self._next is None:
            self._next = loop.create_task(self._look())
        lines = await asyncio.shield(self._next)
        return Doing.SILENT if lines is None else doing_in(lines.get(near, b""))

    async def _look(self) -> dict[bytes, bytes] | None:
        """Return the lines of the server's clients, by their addresses; None if it is silent, or runs a script."""
        now = asyncio.get_running_loop().time
        async with self._one_at_a_time:
            await asyncio.sleep(self._rested - now())
            self._next = None
            if now() < self._asks_again:
                return {}
            try:
                listed = await self._list()
            except ResponseError as error:
                if str(error).startswith("BUSY"):
                    return None
                self._asks_again = now() + REFUSED_SECONDS
                return {}
            except (RedisError, OSError, TimeoutError):
                return None
            self._rested = now() + len(listed) * REST_SECONDS
        lines: dict[bytes, bytes] = {}
        for line in listed.split(b"\n"):
            words = line.split(b" addr=", 1)
            if len(words) == 2:
                lines[words[1].split(b" ", 1)[0]] = line
        return lines
