"""Report the proxy's state: by metrics, readiness, the log and systemd.

Its tests: tests/test_admin.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from proxy import __version__
from proxy.admin.readiness import Readiness
from proxy.metrics.table import Metric, Metrics
from proxy.metrics.traffic import Traffic
from proxy.notify import Notifier
from proxy.status.report import Report, report_of

log = structlog.get_logger("proxy.server")


class Outlook:
    """Reports the proxy's state. It exists before the server is reached, or even started.

    Args:
        notifier: tells systemd.
        worker: the number of the worker that this process is; 1 where there is only one.

    Attributes:
        metrics: what is counted.
        traffic: counts bytes.
        readiness: whether clients can be served.
        look: looks at the server for the status page (`status.look`); None before there is one.
        on_ready: called with the addresses at which clients are accepted, when they are.
    """

    gather: Callable[[], Awaitable[None]] | None = None
    """Collects what other processes report, for `read`."""

    def __init__(self, notifier: Notifier, worker: int = 1) -> None:
        self._notifier = notifier
        self.metrics = Metrics({"version": __version__, "worker": str(worker)})
        self.metrics.build_info = self.metrics.worker_up = 1.0
        self.traffic = Traffic(self.metrics)
        self.readiness = Readiness()
        self.look: Callable[[], Awaitable[dict[str, Any]]] | None = None
        self.on_ready: Callable[[list[str]], None] = lambda _: None

    def ready(self, listen: list[str], upstream: str, state: str) -> None:
        """Say that clients are accepted.

        Args:
            listen: where.
            upstream: the address of the upstream server.
            state: its state.
        """
        self._notifier.ready()
        log.info("ready", listen=listen, upstream=upstream, upstream_state=state, version=__version__)
        self.on_ready(listen)

    def draining(self) -> None:
        """Say that no more clients are accepted."""
        self.readiness.drain()
        self._notifier.stopping()

    def stopped(self) -> None:
        """Say that this is the end."""
        log.info("stopped")

    async def run(self) -> None:
        """Keep reporting the state until cancelled."""
        await self._notifier.run(self._status, lambda: self.hung() is None)

    def _status(self) -> str:
        """Return how the proxy is, for `systemctl status`."""
        obstacle = self.readiness.obstacle()
        return "ready" if obstacle is None else f"not ready: {obstacle}"

    # What the admin port shows.

    def read(self) -> Iterable[Metric]:
        """Give every metric."""
        return self.metrics.read()

    def hung(self) -> str | None:
        """Return which part of the proxy has stopped working; None if all work."""
        return None

    async def reports(self, seconds: float) -> dict[int, Report | None]:
        """Return how each worker is; None for one that does not tell it in so many seconds."""
        return {1: report_of(self.metrics)}

    async def look_at_server(self) -> dict[str, Any] | None:
        """Return what a look at the server finds, a `Looked`; None where nobody can look.

        Raises:
            RedisError: the server does not answer.
        """
        return None if self.look is None else await self.look()
