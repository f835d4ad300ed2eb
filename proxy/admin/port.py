"""Opens the admin port, which shows how the proxy is.

Its tests: tests/test_admin.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from proxy.listen.succession import Succession
from proxy.outlook import Outlook
from proxy.settings import Settings

log = structlog.get_logger("proxy.admin")


@contextlib.asynccontextmanager
async def admin_port(
    settings: Settings,
    outlook: Outlook,
    stop: asyncio.Event,
    before_end: list[Callable[[], None]],
    succession: Succession,
) -> AsyncIterator[None]:
    """Open the admin port, if there is to be one: before anything that may take long, and until the very end.

    Args:
        settings: the settings.
        outlook: what is told there.
        stop: set to drain.
        before_end: functions to call when the process is about to end at once; one is added.
        succession: how the port is taken over from another process, and left to the next.

    Raises:
        SettingsError: the address cannot be listened on.
    """
    if settings.admin is None:
        yield
        return
    # Imported only where it is wanted: 0.1 s of the start, and 1 MB.
    from proxy.admin.exposition import Exposition
    from proxy.admin.pages import Pages
    from proxy.admin.server import AdminServer

    page, board = None, None
    if settings.admin_page:
        from proxy.status.page import Page
        from proxy.status.status import StatusBoard

        board = StatusBoard(outlook, names=settings.admin_names)
        page = Page(board)

    def drain() -> None:
        log.info("drain requested by the admin port")
        outlook.readiness.drain()
        stop.set()

    pages = Pages(
        outlook.readiness.obstacle,
        outlook.traffic.refresh,
        Exposition(outlook.read).render,
        drain,
        outlook.gather,
        outlook.hung,
        page,
    )
    admin = AdminServer(settings.admin, pages)
    before_end.append(admin.remove_path)
    try:
        await admin.open(succession)
        if board is not None:
            board.open()
        yield
    finally:
        await admin.close()
        if board is not None:
            await board.close()
