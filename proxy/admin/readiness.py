"""Tell a readiness probe whether clients can be served, and if not, why.

Its tests: tests/test_admin_http.py.
"""

from __future__ import annotations

from collections.abc import Callable


class Readiness:
    """What stands in the way of serving clients."""

    def __init__(self) -> None:
        self._obstacle: Callable[[], str | None] = lambda: "starting"
        self._draining = False

    def judge_by(self, obstacle: Callable[[], str | None]) -> None:
        """Have a function asked from now on: it returns what is in the way, or None."""
        self._obstacle = obstacle

    def drain(self) -> None:
        """Note that the proxy takes no more clients."""
        self._draining = True

    def obstacle(self) -> str | None:
        """Return what stands in the way, on one line; None when clients can be served."""
        return "draining" if self._draining else self._obstacle()
