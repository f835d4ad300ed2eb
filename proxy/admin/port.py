"""Open the admin port, which serves probes, metrics and the status page.

Its tests: tests/test_admin.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from proxy.listen.succession import Succession
from proxy.reporting import Reporting
from proxy.settings import Settings

log = structlog.get_logger("proxy.admin")


@contextlib.asynccontextmanager
async def admin_port(
    settings: Settings,
    reporting: Reporting,
    stop: asyncio.Event,
    before_end: list[Callable[[], None]],
    succession: Succession,
) -> AsyncIterator[None]:
    """Keep the admin port open, if it is configured: open the port before any slow step, and close it last.

    Args:
        settings: the settings.
        reporting: the state that the port shows.
        stop: set to drain.
        before_end: functions to call before the process exits abruptly; this adds one.
        succession: takes the port over from another process, and hands it on to the next.

    Raises:
        SettingsError: the address cannot be listened on.
    """
    if settings.admin is None:
        yield
        return
    # Import only if needed: these modules cost 0.1 s at startup and 1 MB.
    from proxy.admin.exposition import Exposition
    from proxy.admin.pages import Pages
    from proxy.admin.server import AdminServer

    page, board = None, None
    if settings.admin_page:
        from proxy.status.page import Page
        from proxy.status.status import StatusBoard

        board = StatusBoard(reporting, names=settings.admin_names)
        page = Page(board)

    def drain() -> None:
        log.info("drain requested by the admin port")
        reporting.readiness.drain()
        stop.set()

    pages = Pages(
        reporting.readiness.obstacle,
        reporting.traffic.refresh,
        Exposition(reporting.read).render,
        drain,
        reporting.gather,
        reporting.hung,
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
