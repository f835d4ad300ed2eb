"""Choose the upstream: the server in the settings, or an embedded one that is started first.

Its tests: tests/test_embedded.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from proxy.embedded.binaries import EmbeddedError
from proxy.embedded.server import EmbeddedServer
from proxy.ending import end
from proxy.held_signals import StoppedError
from proxy.settings import Settings

log = structlog.get_logger("proxy.server")


@contextlib.asynccontextmanager
async def upstream_url(settings: Settings, stop: asyncio.Event) -> AsyncIterator[str]:
    """Yield the address of the upstream. An embedded server is started first, and stopped at the end.

    Args:
        settings: the settings.
        stop: set when the process is told to stop, which ends a start, and by this function when the embedded server
            has exited by itself.

    Raises:
        EmbeddedError: the embedded server cannot be started, or has exited by itself.
        StoppedError: the process was told to stop before the embedded server had started.
    """
    if not settings.embedded:
        yield settings.upstream
        return
    embedded = EmbeddedServer(settings.embedded_dir)
    await _start(embedded, stop)

    async def watch() -> None:
        status = await embedded.wait()
        log.error("embedded server exited", status=status)
        stop.set()

    watcher = asyncio.create_task(watch())
    try:
        yield embedded.url
    finally:
        ended = watcher.done()
        watcher.cancel()
        await embedded.stop()
    if ended:
        raise EmbeddedError("the embedded server has ended by itself")


async def _start(embedded: EmbeddedServer, stop: asyncio.Event) -> None:
    starting, stopped = asyncio.create_task(embedded.start()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        else:
            raise StoppedError
    finally:
        starting.cancel()  # once only: it stops the server before it ends
        await asyncio.wait({starting})
        await end({stopped})
