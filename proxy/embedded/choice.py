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
from proxy.settings import Settings

log = structlog.get_logger("proxy.server")


@contextlib.asynccontextmanager
async def upstream_url(settings: Settings, stop: asyncio.Event) -> AsyncIterator[str]:
    """Yield the address of the upstream. An embedded server is started first, and stopped at the end.

    Args:
        settings: the settings.
        stop: set when the embedded server has exited by itself.

    Raises:
        EmbeddedError: the embedded server cannot be started, or has exited by itself.
    """
    if not settings.embedded:
        yield settings.upstream
        return
    embedded = EmbeddedServer(settings.embedded_dir)
    await embedded.start()

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
