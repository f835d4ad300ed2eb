"""Find out whether a client could lose a reply that it wants if its half close were forwarded now.

Its tests: tests/test_silence.py.

On a half close the server drops the replies that it has not sent yet. Until then it sends all replies, and the proxy
drops those that the client has turned off. So a wanted reply may still wait in the server behind large unwanted ones.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.session.standing import Standing
from proxy.wire.pieces import Wish


class Loss:
    """Tracks whether one client could lose a wanted reply, given the order of its requests.

    Args:
        standing: the state of the connection.
    """

    __slots__ = ("_behind", "_mixed", "_reached", "_standing")

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._mixed = -1  # number of the first sign after the place from which the client last wanted replies again
        self._behind = -1  # the place right after the last SKIP, in the bytes to be sent next; -1 for none
        self._reached = -1  # number of the last answered sign before a request that may block

    @property
    def is_possible(self) -> bool:
        """Whether the client could lose a reply, or a message, if its half close were forwarded now. False once the
        server has reached a request that may block."""
        standing = self._standing
        if not standing.replies.silence.suspected or self.has_reached_blocker:
            return False
        return self.is_unsettled or standing.subscriptions.begun or standing.caches

    @property
    def is_unsettled(self) -> bool:
        """Whether the client wants replies again after unwanted ones, and no sign sent since has been answered."""
        return self._mixed >= self._standing.replies.settled

    @property
    def has_reached_blocker(self) -> bool:
        """Whether the server has sent all replies up to a request that may block, and nothing since."""
        return self._reached >= 0 and self._standing.replies.comes_last == self._reached

    @property
    def awaits_next(self) -> bool:
        """Whether a SKIP was sent last: the next request must be noted."""
        return self._behind >= 0

    def reach(self) -> Callable[[], None]:
        """Return the callback for the next sign, which precedes a request that may block."""
        number = self._standing.replies.next_number

        def found() -> None:
            self._reached = number

        return found

    def expect_wish(self, place: int) -> None:
        """Note that a wish will be put at a place in the stream."""
        self.look(place)
        if not self._standing.replies.silence.suspected:
            self._reached = -1  # replies were not observed, so some may have come after that sign

    def note_wish(self, wish: Wish, place: int) -> None:
        """Note a wish that has just been put into the stream.

        Args:
            wish: the wish.
            place: the place after it.
        """
        if wish is Wish.SKIP:
            self._behind = place
        elif wish is Wish.OFF:
            self._behind = -1
        elif wish not in (Wish.HEARD, Wish.BEGINS):
            self._mixed = self._standing.replies.next_number

    def look(self, place: int, *, sent: bool = False) -> None:
        """Note whether a request has followed the last SKIP, before `place`: then replies are wanted again.

        `sent`: whether everything before `place` is sent now, so that places begin at 0 again.
        """
        if 0 <= self._behind < place:
            self._mixed, self._behind = self._standing.replies.next_number, -1
        if sent and self._behind >= 0:
            self._behind = 0
