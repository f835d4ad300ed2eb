"""The end of one client's requests: what the server is told of it, and when the client is told its last.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from proxy.relay.flow import Flow
from proxy.relay.later import guarded
from proxy.relay.outbound import Outbound
from proxy.relay.progress import Progress
from proxy.relay.sharing import Sharing
from proxy.relay.state import ENDING, Course, State
from proxy.relay.upstream import UpstreamConnection
from proxy.session.errors import RefusedAtItsHeadError
from proxy.session.session import Session
from proxy.wire.framing import framed_end, is_beginning

PATIENCE_SECONDS: Final = 5.0
"""How long a client that is turned away waits for the replies to what it has sent before."""


class Client(Protocol):
    """The client's side of the connection."""

    def ignore(self) -> None:
        """Read on, and drop what comes: the client is told its last."""

    def close(self) -> None:
        """Close: nothing more is to be sent for a client that has gone."""

    def say_farewell(self, line: bytes) -> None:
        """Say something, or nothing, and close so that the client can read it."""

    def abandon(self) -> None:
        """Close without waiting for replies."""

    def fail(self, error: BaseException) -> None:
        """End both sides."""


class Ending:
    """How one client's requests come to their end.

    Args:
        client: the client's side.
        course: where the connection stands.
        session: what judges the requests.
        upstream: where they go.
        outbound: sends them.
        sharing: the client's use of shared connections, if there are any.
        progress: tells how far the server has come.
        flow: counts what is held.

    Attributes:
        untold: whether the client has ended, and the server been told of no end that it heeds for certain.
        last_words: for a client that is turned away, when its requests have been answered.
    """

    __slots__ = (
        "_client",
        "_course",
        "_flow",
        "_outbound",
        "_progress",
        "_session",
        "_sharing",
        "_upstream",
        "last_words",
        "untold",
    )

    def __init__(
        self,
        client: Client,
        course: Course,
        session: Session,
        upstream: UpstreamConnection,
        outbound: Outbound,
        sharing: Sharing | None,
        progress: Progress,
        flow: Flow,
    ) -> None:
        self._client = client
        self._course = course
        self._session = session
        self._upstream = upstream
        self._outbound = outbound
        self._sharing = sharing
        self._progress = progress
        self._flow = flow
        self.untold = False
        self.last_words = b""

    # The client ends.

    def end_input(self) -> None:
        """Let the client's half close reach upstream, behind all that it has sent."""
        session, upstream = self._session, self._upstream
        if session.unfinished or session.reads.under_way or self._comes_back_first():
            return  # not yet: see `Conversation._proceed`; meanwhile the client is looked after
        waits = self._progress.waits_for_others and upstream.end_beneath()
        sign = None if upstream.ends_by_halves or waits else session.drain()
        if sign is None and not (upstream.ends_by_halves or waits):
            upstream.end_beneath()  # a request has been sent in part: its rest will not come
        rest = session.intake.rest()
        self._flow.account()
        # What stands between may not heed an end beneath TLS; behind a request that was cut off there is no sign.
        self.untold = not upstream.ends_by_halves
        self._progress.unsigned = sign is None
        self._course.move(State.ENDED)
        if upstream.ends_by_halves:
            # A server that has to read more first gives what others bring to a client that waits no more. What is only
            # the beginning of a request means nothing to it.
            upstream.end(b"" if is_beginning(rest[framed_end(rest) :]) else rest)
        elif sign is not None and not session.replies.unheard:
            self._outbound.send(sign)
        elif sign is not None:
            upstream.leave()

    def end_refused(self) -> None:
        """Let it reach the server, which may wait for that, as it has nothing to say, or be blocked."""
        if self._upstream.ends_by_halves:
            self.untold = True
            self._upstream.end()
        elif not self._session.answers:
            self._after(PATIENCE_SECONDS, lambda: self._lose_patience(b""))

    def give_up(self) -> None:
        """Tell the server of the end: it does not come to what the client has sent since, be it sent on or not."""
        state, upstream = self._course.state, self._upstream
        if state is State.ORPHANED:
            self._client.close()
            return
        self._discard()
        self._client.ignore()
        self.untold = state is not State.ENDED and state in ENDING
        if state not in ENDING:
            self._course.move(State.ENDED)
        if upstream.ends_by_halves:
            upstream.end()
        elif upstream.ended_beneath:
            upstream.abort()
        else:
            upstream.leave()

    # The client is turned away.

    def turn_away(self, line: bytes) -> None:
        """Send the client the error after the replies to what it sent before, and close."""
        session, upstream = self._session, self._upstream
        sign = session.drain(line) if session.answers and not upstream.closing else None
        if sign is None:
            self._outbound.send(session.intake.take_out())
        self._discard()
        if self._course.state is State.ORPHANED:
            self._outbound.send(sign or b"")  # behind what was judged before
            self._client.close()
            return
        if sign is not None:
            self._let_answer(State.DRAINING, line)
            self._outbound.send(sign)
        elif not upstream.closing and session.owes:
            self._let_answer(State.YIELDING, line)
        else:
            self._client.say_farewell(line)
            return
        # On timeout, send the error anyway.
        self._after(PATIENCE_SECONDS, lambda: self._client.say_farewell(line))

    def let_refuse(self, error: RefusedAtItsHeadError) -> None:
        """Show the server the beginning of a request at which it closes, and nothing after it."""
        self._outbound.send(error.beginning)
        self._discard()
        if self._course.state is State.ORPHANED:
            self._client.close()
            return
        stops = self._course.state is State.FINISHING
        self._course.move(State.REFUSED)
        self._client.ignore()
        if self._course.input_ended:
            self.end_refused()
        if error.reply:
            # Should it have changed its mind about logins it waits for the rest, which must not come unjudged.
            self._after(PATIENCE_SECONDS, lambda: self._lose_patience(error.reply))
        elif stops:
            self.drain_refused()
        # A server that refuses silently keeps the connection until the client closes it.

    def _lose_patience(self, line: bytes) -> None:
        """Say the server's last word for it, unless replies to earlier requests are still to come."""
        if self._session.owes:
            self._after(PATIENCE_SECONDS, lambda: self._lose_patience(line))
        else:
            self._client.say_farewell(line)

    # The proxy is about to stop.

    def drain(self) -> None:
        """Close when all that was sent has been answered."""
        session, upstream = self._session, self._upstream
        if self._comes_back_first():
            return
        if upstream.closing:
            self._client.abandon()
            return
        # No sign is answered after CLIENT REPLY OFF or SKIP, and none can follow a half-sent request: then wait for the
        # replies to what came before it, and for the server to close.
        sign = session.drain() if session.answers else None
        if sign is not None:
            self._let_answer(State.DRAINING)
            self._outbound.send(sign)
        elif session.owes:
            self._let_answer(State.YIELDING)
        else:
            self.end_input()

    def drain_refused(self) -> None:
        """Close when all has been answered that stands in front of what the server says nothing to."""
        if self._session.answers:
            return  # upstream closes after its word
        if self._session.owes:
            self._let_answer(State.YIELDING)
        else:
            self._client.say_farewell(b"")

    # Replies come.

    def note_replies(self) -> bool:
        """End where only the replies that have come were waited for; return False where there is more to be done."""
        state, session = self._course.state, self._session
        if state is State.YIELDING and not session.owes:
            self._client.say_farewell(self.last_words)
        elif session.replies.outstanding:
            return False
        elif state is State.DRAINING:
            self._client.say_farewell(b"")
        elif state is State.ENDED and not self._upstream.ends_by_halves:
            self._upstream.leave()
        else:
            return False
        return True

    def _let_answer(self, state: State, last_words: bytes = b"") -> None:
        """Take no more requests while those that were sent are being answered."""
        self.last_words = last_words
        self._course.move(state)
        self._client.ignore()

    def _discard(self) -> None:
        """Keep nothing of what has come and not been sent."""
        self._session.discard()
        self._flow.account()

    def _comes_back_first(self) -> bool:
        """Return whether replies to what was sent over shared connections are to come first; `Conversation` goes on."""
        if self._sharing is None or not self._sharing.away:
            return False
        self._sharing.leave()
        return True

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        self._course.after(seconds, guarded(work, self._client.fail))
