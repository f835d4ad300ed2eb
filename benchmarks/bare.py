"""A relay on uvloop that looks at nothing, to tell what looking costs: `benchmarks.relay --bare` measures it too.

    python -m benchmarks.bare PORT UPSTREAM_PORT

What comes on one transport is handed to the other one's `write` by the loop itself, without a line of Python between
them. It has no back-pressure and no order in which to end: it is a measure, and nothing to use.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import cast

import uvloop

from benchmarks.stage import HOST


class _Side(asyncio.Protocol):
    """One of the two connections of a client."""

    other: _Side | None = None
    transport: asyncio.Transport

    def __init__(self, connected: Callable[[_Side], None]) -> None:
        self._connected = connected
        self._early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connected(self)

    def data_received(self, data: bytes) -> None:
        self._early += data
        self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()

    def join(self, other: _Side) -> None:
        """Hand on all that comes."""
        self.other = other
        self.data_received = other.transport.write  # type: ignore[method-assign]
        self.transport.set_protocol(self)
        other.transport.write(self._early)
        self.transport.resume_reading()


async def _relay(port: int, upstream: int) -> None:
    loop = asyncio.get_running_loop()
    tasks = set()

    def connect(client: _Side) -> None:
        def join(server: _Side) -> None:
            client.join(server)
            server.join(client)

        task = loop.create_task(loop.create_connection(lambda: _Side(join), HOST, upstream))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await loop.create_server(lambda: _Side(connect), HOST, port)
    gc.freeze()
    await loop.create_future()


if __name__ == "__main__":
    uvloop.run(_relay(int(sys.argv[1]), int(sys.argv[2])))
