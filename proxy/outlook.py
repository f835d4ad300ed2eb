"""What tells others how the proxy is: metrics, readiness, systemd, and the admin port that shows them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from proxy import __version__
from proxy.admin.readiness import Readiness
from proxy.metrics.table import Metrics
from proxy.metrics.traffic import Traffic
from proxy.notify import Notifier
from proxy.settings import Settings

log = structlog.get_logger("proxy.admin")


class Outlook:
    """What tells others how the proxy is; there before the server is reached, or even started.

    Args:
        notifier: tells systemd.

    Attributes:
        notifier: the same.
        metrics: what is counted.
        traffic: counts bytes.
        readiness: whether clients can be served.
    """

    def __init__(self, notifier: Notifier) -> None:
        self.notifier = notifier
        self.metrics = Metrics({"version": __version__})
        self.metrics.build_info = 1.0
        self.traffic = Traffic(self.metrics)
        self.readiness = Readiness()


@contextlib.asynccontextmanager
async def admin_port(
    settings: Settings, outlook: Outlook, stop: asyncio.Event, before_end: list[Callable[[], None]]
) -> AsyncIterator[None]:
    """Open the admin port, if there is to be one: before anything that may take long, and until the very end.

    Args:
        settings: the settings.
        outlook: what is told there.
        stop: set to drain.
        before_end: functions to call when the process is about to end at once; one is added.

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

    exposition = Exposition(outlook.metrics)

    def drain() -> None:
        log.info("drain requested by the admin port")
        outlook.readiness.drain()
        stop.set()

    admin = AdminServer(
        settings.admin, Pages(outlook.readiness.obstacle, outlook.traffic.refresh, exposition.render, drain)
    )
    before_end.append(admin.remove_path)
    try:
        await admin.open()
        yield
    finally:
        await admin.close()
