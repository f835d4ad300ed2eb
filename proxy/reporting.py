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


class Reporting:
    """Reports the proxy's state. Exists before the upstream is reached, or an embedded server started.

    Args:
        notifier: notifies systemd.
        worker: the number of this worker; 1 if it is the only one.

    Attributes:
        metrics: the metrics of this process.
        traffic: counts bytes.
        readiness: whether clients can be served.
        look: queries the server for the status page (`status.look`); None until it is set.
        on_ready: called with the listen addresses when clients are accepted.
    """

    gather: Callable[[], Awaitable[None]] | None = None
    """Collects the metrics of other processes for `read`."""

    def __init__(self, notifier: Notifier, worker: int = 1) -> None:
        self._notifier = notifier
        self.metrics = Metrics({"version": __version__, "worker": str(worker)})
        self.metrics.build_info = self.metrics.worker_up = 1.0
        self.traffic = Traffic(self.metrics)
        self.readiness = Readiness()
        self.look: Callable[[], Awaitable[dict[str, Any]]] | None = None
        self.on_ready: Callable[[list[str]], None] = lambda _: None

    def ready(self, listen: list[str], upstream: str, state: str) -> None:
        """Report that clients are accepted.

        Args:
            listen: the listen addresses.
            upstream: the address of the upstream server.
            state: the upstream's state.
        """
        self._notifier.ready()
        log.info("ready", listen=listen, upstream=upstream, upstream_state=state, version=__version__)
        self.on_ready(listen)

    def draining(self, *, relieved: bool = False) -> None:
        """Report that no more clients are accepted.

        Args:
            relieved: whether another process accepts clients instead.
        """
        self.readiness.leave() if relieved else self.readiness.drain()
        self._notifier.stopping()

    def stopped(self) -> None:
        """Report that the proxy ends."""
        log.info("stopped")

    async def run(self) -> None:
        """Keep reporting the state until cancelled."""
        await self._notifier.run(self._status, lambda: self.hung() is None)

    def _status(self) -> str:
        """Return the state for `systemctl status`."""
        obstacle = self.readiness.obstacle()
        return "ready" if obstacle is None else f"not ready: {obstacle}"

    # For the admin port.

    def read(self) -> Iterable[Metric]:
        """Return all metrics."""
        return self.metrics.read()

    def hung(self) -> str | None:
        """Return which part of the proxy hangs; None if none does."""
        return None

    async def reports(self, seconds: float) -> dict[int, Report | None]:
        """Return each worker's report; None for a worker that does not send one in time."""
        return {1: report_of(self.metrics)}

    async def look_at_server(self) -> dict[str, Any] | None:
        """Query the server for the status page: a `Looked`, or None if that is not possible.

        Raises:
            RedisError: the server does not answer.
        """
        return None if self.look is None else await self.look()
