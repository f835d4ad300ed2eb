"""Tell how far the server has come in what one client has sent, as far as that shows from here.

Its tests: tests/test_vigil.py.
"""

from __future__ import annotations

from proxy.relay.upstream import UpstreamConnection
from proxy.session.session import Session


class Progress:
    """The server's way through one client's requests.

    Args:
        session: the client's.
        upstream: where its requests go.

    Attributes:
        unsigned: whether nothing will tell that all has been answered.
    """

    __slots__ = ("_blocker", "_counts", "_heard", "_session", "_upstream", "unsigned")

    def __init__(self, session: Session, upstream: UpstreamConnection) -> None:
        self._session = session
        self._upstream = upstream
        self._blocker = -1  # as of the session's, when these were the bytes that had been received and sent
        self._counts = 0, 0
        self._heard = -1  # as of the upstream's, when a request that may block was sent last, by TLS
        self.unsigned = False

    def note_judged(self) -> None:
        """Note how much was sent in front of a request that may block, or of an earlier one if nothing was answered.

        To be called between the session's judgement and the sending.
        """
        session, upstream = self._session, self._upstream
        if session.blocker == self._blocker:
            return
        counts = upstream.counts()
        if counts[0] != self._counts[0] or self._blocker < session.replies.settled:
            self._counts = counts
        self._blocker = session.blocker
        if not upstream.ends_by_halves:
            self._heard = upstream.heard()

    @property
    def may_block(self) -> bool:
        """Whether a request may keep what follows it from running, or nothing tells that all has run."""
        return self.unsigned or self._session.may_block

    @property
    def waits_for_others(self) -> bool:
        """Whether a request that may block has been sent, by TLS, and nothing has come since."""
        return self._session.may_block and self._upstream.heard() == self._heard

    @property
    def is_heard(self) -> bool:
        """Whether what the server says is read."""
        return self._upstream.is_reading

    def heard(self) -> int:
        """Return a number that changes when the server says something."""
        return self._upstream.heard()

    def answered(self) -> int:
        """Return a number that changes when the server answers: a sign, where it also tells something unasked."""
        return self._session.replies.settled if self._session.hears_unasked else self._upstream.heard()

    @property
    def is_taken(self) -> bool:
        """Whether all has been sent, as far as this system knows."""
        return not self._upstream.untaken

    def behind(self) -> int:
        """Return how many bytes have been sent since the request that may block, or in all."""
        return self._upstream.counts()[1] - (self._counts[1] if self._session.may_block else 0)

    @property
    def drops(self) -> bool:
        """Whether to end now drops requests of the client's; else what has been sent goes before the end."""
        return not self._upstream.ends_by_halves or self._session.held > 0 or self._session.unfinished
