"""Put signs after what a client has sent: requests of the proxy whose replies show that everything before has run.

Its tests: tests/test_signs.py.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.relay.state import Course
from proxy.relay.upstream import UpstreamConnection
from proxy.session.pipeline import Passed, Sender
from proxy.session.session import Session


class Signs(Sender):
    """Sends signs after a connected client's requests.

    Args:
        session: the client's session.
        upstream: the server's side.
        course: knows whether requests can still be sent.
        send: sends requests to the server.
    """

    def __init__(
        self, session: Session, upstream: UpstreamConnection, course: Course, send: Callable[[bytes], None]
    ) -> None:
        self._session = session
        self._upstream = upstream
        self._course = course
        self._send = send

    def ask(self) -> Passed | None:
        """Send a sign behind all requests sent; return a function that returns whether these have run."""
        session, upstream = self._session, self._upstream
        if self._course.ended or self._course.refused:
            return lambda: upstream.lost  # the server closes when it has read everything: the close serves as the sign
        if not self._course.sends:
            return None
        passed: list[bool] = []
        sign = session.sign(lambda: passed.append(True))
        if sign is None or upstream.closing:
            return None
        self._send(sign)
        replies = session.replies
        return lambda: bool(passed) or not replies.outstanding

    def before(self) -> Passed | None:
        """Return a function that returns whether everything sent before the open transaction has been answered."""
        return self._session.has_begun_transaction

    def heard(self) -> int | None:
        """Return a number that changes with the server's replies; None while they are not read."""
        return None if self._course.ended or not self._upstream.is_reading else self._upstream.heard()


class Departed(Sender):
    """Replaces signs for a client that has gone: its requests have run once the server has read them all and closed.

    Args:
        upstream: the server's side.
    """

    def __init__(self, upstream: UpstreamConnection) -> None:
        self._upstream = upstream

    def ask(self) -> Passed:
        """Return a function that returns whether the connection has ended."""
        upstream = self._upstream
        return lambda: upstream.lost

    def heard(self) -> None:
        """Return None: replies are not read."""
