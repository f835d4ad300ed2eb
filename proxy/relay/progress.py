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

    __slots__ = ("_blocker", "_first", "_last", "_passed", "_session", "_upstream", "unsigned")

    def __init__(self, session: Session, upstream: UpstreamConnection) -> None:
        self._session = session
        self._upstream = upstream
        self._blocker = session.blocker  # the last one that was recorded
        # How many bytes had been received, and were sent, when the first request that may block since something was
        # received had been sent (or before it, if others were sent with it), and how many were sent up to the last one.
        self._first, self._last = (-1, 0), 0
        self._passed = -1  # the upstream's `passed()` when a request that may block was last sent over TLS
        self.unsigned = False

    def note_judged(self) -> None:
        """Record how much was sent up to a request that may block. Call this between judging and sending."""
        session, upstream = self._session, self._upstream
        if session.blocker == self._blocker:
            return
        received, sent = upstream.counts()
        self._last = sent + session.blocker.ahead
        if received != self._first[0]:
            alone = session.blocker.number == self._blocker.number + 1
            self._first = received, self._last if alone else sent
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
        """Return how many bytes were sent since the request that may block; all bytes if there is none.

        It is the first of several until something is received. That comes from a request in front of it, so that the
        server may stand at it, or is its reply; then the last one counts.
        """
        received, sent = self._upstream.counts()
        if not self._session.may_block:
            return sent
        return max(0, sent - (self._first[1] if received == self._first[0] else self._last))

    @property
    def drops(self) -> bool:
        """Whether ending now would drop requests of the client; otherwise the server reads everything before the
        end."""
        return not self._upstream.ends_by_halves or self._session.held > 0 or self._session.unfinished
