"""Send one client's requests over its own connection to the server, and prepare for replies that need processing.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

from proxy.relay.upstream import UpstreamConnection
from proxy.session.session import Session
from proxy.session.streams import LONG


class Outbound:
    """Sends one client's requests.

    Args:
        session: the client's session.
        upstream: the server's side.
    """

    __slots__ = ("_session", "_upstream")

    def __init__(self, session: Session, upstream: UpstreamConnection) -> None:
        self._session = session
        self._upstream = upstream

    def send(self, out: bytes) -> None:
        """Send requests to the server, unless its connection is closing."""
        session, upstream = self._session, self._upstream
        if session.replies.active:
            upstream.substitute(session.replies)
            if session.replies.wants_probe:
                out += session.probe() or b""
        if not upstream.closing:
            if len(out) > LONG or session.unfinished:  # `unfinished`: this is one turn's part of a long pipeline
                session.lengthen()
            upstream.write(out)
