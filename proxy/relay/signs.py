"""Puts signs behind what a client has sent: requests of the proxy's own, whose replies tell that all before has run.

Its tests: tests/test_signs.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from proxy.relay.state import Course
from proxy.relay.upstream import UpstreamConnection
from proxy.session.pipeline import Passed, Sender
from proxy.session.session import Session

UNHEARD_SECONDS: Final = 10.0
"""How long requests may take to be run whose replies the client does not want (CLIENT REPLY OFF)."""


class Signs(Sender):
    """Those behind a connected client's requests.

    Args:
        session: the client's.
        upstream: where its requests go.
        course: tells whether requests still go.
        send: sends them.
    """

    def __init__(
        self, session: Session, upstream: UpstreamConnection, course: Course, send: Callable[[bytes], None]
    ) -> None:
        self._session = session
        self._upstream = upstream
        self._course = course
        self._send = send

    def ask(self) -> Passed | None:
        """Put a sign behind all that has been sent."""
        session, upstream, loop = self._session, self._upstream, asyncio.get_running_loop()
        if session.replies.silenced or self._course.refused:
            # No reply may come: give the requests their time.
            enough = loop.time() + UNHEARD_SECONDS
            return lambda: loop.time() >= enough
        if self._course.ended:
            return lambda: upstream.lost  # the server closes when it has come to the end
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
        """See whether what was sent before the open transaction has been answered."""
        return self._session.has_begun_transaction

    def heard(self) -> int | None:
        """Count what the server says, unless nothing is read of it: the client may not read its replies either."""
        return None if self._course.ended or not self._upstream.is_reading else self._upstream.heard()


class Departed(Sender):
    """The sign of a client that has gone: what it sent has run when the server has come to the end of it, and closes.

    Args:
        upstream: where its requests went.
    """

    def __init__(self, upstream: UpstreamConnection) -> None:
        self._upstream = upstream

    def ask(self) -> Passed:
        """Wait for the end."""
        upstream = self._upstream
        return lambda: upstream.lost

    def heard(self) -> None:
        """Nobody looks at what the server says to it."""
