"""Tell a readiness probe whether clients can be served, and if not, why.

Its tests: tests/test_admin_http.py.
"""

from __future__ import annotations

from collections.abc import Callable


class Readiness:
    """Whether clients can be served, and if not, why."""

    def __init__(self) -> None:
        self._obstacle: Callable[[], str | None] = lambda: "starting"
        self._draining = False

    def judge_by(self, obstacle: Callable[[], str | None]) -> None:
        """Set the function that returns why clients cannot be served, or None."""
        self._obstacle = obstacle

    def drain(self) -> None:
        """Record that the proxy takes no more clients."""
        self._draining = True

    def leave(self) -> None:
        """Record that another process serves the clients. From now on answer "ready" to probes that reach this one."""
        self._obstacle, self._draining = lambda: None, False

    def obstacle(self) -> str | None:
        """Return why clients cannot be served, on one line; None if they can."""
        return "draining" if self._draining else self._obstacle()
