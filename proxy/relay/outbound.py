"""Send one client's requests over its own connection to the server, and see to what the replies have to pass through.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

from proxy.relay.upstream import UpstreamConnection
from proxy.session.session import Session
from proxy.session.streams import LONG


class Outbound:
    """The way of one client's requests.

    Args:
        session: the client's.
        upstream: where they go.
    """

    __slots__ = ("_session", "_upstream")

    def __init__(self, session: Session, upstream: UpstreamConnection) -> None:
        self._session = session
        self._upstream = upstream

    def send(self, out: bytes) -> None:
        """Send requests to the server, which takes them as long as it has not been told that there come no more."""
        session, upstream = self._session, self._upstream
        if session.replies.active:
            upstream.substitute(session.replies)
            if session.replies.wants_probe:
                out += session.probe() or b""
        if not upstream.closing:
            if len(out) > LONG or session.unfinished:  # a short turn's part of what is long
                session.lengthen()
            upstream.write(out)
