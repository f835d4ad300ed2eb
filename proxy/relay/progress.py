"""Estimate how far the server has got with one client's requests.

Its tests: tests/test_vigil.py.
"""

from __future__ import annotations

from proxy.relay.upstream import UpstreamConnection
from proxy.session.session import Session


class Progress:
    """The server's progress in one client's requests.

    Args:
        session: the client's session.
        upstream: the server's side.

    Attributes:
        unsigned: whether there is no sign to show that everything has been answered.
    """

    __slots__ = ("_blocker", "_counts", "_passed", "_session", "_upstream", "unsigned")

    def __init__(self, session: Session, upstream: UpstreamConnection) -> None:
        self._session = session
        self._upstream = upstream
        self._blocker = session.blocker  # for which `_counts` was recorded
        self._counts = -1, 0
        self._passed = -1  # the upstream's `passed()` when a request that may block was last sent over TLS
        self.unsigned = False

    def note_judged(self) -> None:
        """Record how much was sent before a request that may block; keep the last record if nothing was answered since.

        Call this between judging and sending.
        """
        session, upstream = self._session, self._upstream
        if session.blocker == self._blocker:
            return
        received, sent = upstream.counts()
        if received != self._counts[0]:
            self._counts = received, sent and sent + session.blocker.ahead  # zero: not known
        self._blocker = session.blocker
        if not upstream.ends_by_halves:
            self._passed = upstream.passed()

    @property
    def may_block(self) -> bool:
        """Whether a request may block those after it, or no sign shows that everything has run."""
        return self.unsigned or self._session.may_block

    @property
    def waits_for_others(self) -> bool:
        """Whether a request that may block was sent over TLS, and nothing for the client was received since."""
        return self._session.may_block and self._upstream.passed() == self._passed

    @property
    def is_heard(self) -> bool:
        """Whether replies are being read."""
        return self._upstream.is_reading

    def heard(self) -> int:
        """Return a number that changes when the server sends something."""
        return self._upstream.heard()

    def answered(self) -> int:
        """Return a number that changes when the server answers. If it may also send pushes, only signs count."""
        return self._session.replies.settled if self._session.hears_unasked else self._upstream.heard()

    @property
    def is_taken(self) -> bool:
        """Whether everything has been sent, as far as this system knows."""
        return not self._upstream.untaken

    def behind(self) -> int:
        """Return how many bytes were sent since the request that may block; all bytes if there is none."""
        return max(0, self._upstream.counts()[1] - (self._counts[1] if self._session.may_block else 0))

    @property
    def drops(self) -> bool:
        """Whether ending now would drop requests of the client; otherwise the server reads everything before the
        end."""
        return not self._upstream.ends_by_halves or self._session.held > 0 or self._session.unfinished
