"""The end of a client's requests: how the server is notified, and when the client gets its last words.

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
"""How long a client that is turned away waits for replies to its earlier requests."""


class Client(Protocol):
    """What the end needs from the client's side."""

    def ignore(self) -> None:
        """Go on reading but drop the bytes: the client gets no more replies to new requests."""

    def close(self) -> None:
        """Close: there is nothing more to send for a client that has gone."""

    def say_farewell(self, line: bytes) -> None:
        """Send last words, possibly none, and close so that the client can read them."""

    def abandon(self) -> None:
        """Close without waiting for replies."""

    def fail(self, error: BaseException) -> None:
        """Close both sides after an internal error."""


class Ending:
    """Brings one client's requests to an orderly end.

    Args:
        client: the client's side.
        course: the connection's state.
        session: judges the requests.
        upstream: the server's side.
        outbound: sends the requests.
        sharing: the client's use of shared connections, if any.
        progress: estimates how far the server has got.
        flow: counts the held bytes.

    Attributes:
        untold: whether the client has ended, but it is uncertain that the server will notice.
        last_words: the error for a client that is turned away, sent after the replies.
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
        """Forward the client's half close to the server, after everything that it has sent."""
        session, upstream = self._session, self._upstream
        if session.unfinished or session.reads.under_way or self._comes_back_first():
            return  # `Conversation._proceed` calls this again; until then the vigil watches the client
        halves = upstream.ends_by_halves
        waits = self._progress.waits_for_others and upstream.end_beneath()
        # On a half close the server discards unsent replies. If a wanted one may be queued behind unwanted ones, first
        # wait for a sign after all requests, or for one before a request that blocks.
        defers = halves and session.loss.is_possible
        sign = session.drain() if defers or not (halves or waits) else None
        if sign is None and not (halves or waits):
            upstream.end_beneath()  # no sign fits into a request sent in part, whose rest will not come
        rest = session.intake.rest()
        self._flow.account()
        # Over TLS the server may not see the half close: a middlebox may ignore it. No sign follows a request cut off.
        self.untold = not halves or defers
        self._progress.unsigned = sign is None
        self._course.move(State.ENDED)
        if halves and not defers:
            # Until the server has read up to the end, it could still send others' data to this client. An incomplete
            # request has no effect, so leave it out.
            upstream.end(b"" if is_beginning(rest[framed_end(rest) :]) else rest)
        elif sign is not None:
            self._outbound.send(sign)

    @property
    def may_probe(self) -> bool:
        """Whether a probe can still be sent: the client has ended, but the server is to be told only after a sign."""
        return self._course.state is State.ENDED and self.untold and not self._upstream.ended_beneath

    def end_refused(self) -> None:
        """Forward the half close: a server that is blocked may close only then."""
        if self._upstream.ends_by_halves and not self._session.loss.is_possible:
            self.untold = True
            self._upstream.end()

    def _end_late(self) -> None:
        """Forward a half close that had to wait, unless a reply could still be lost."""
        session, state, loss = self._session, self._course.state, self._session.loss
        if not loss.has_reached_blocker and (loss.is_unsettled or session.replies.outstanding):
            return
        if state is State.REFUSED and self._course.input_ended and not self.untold:
            self.end_refused()
        elif state is State.ENDED and self.untold and self._upstream.ends_by_halves:
            self.untold = False
            self._upstream.end()

    def give_up(self) -> None:
        """Close towards the server and drop unsent requests: the client has gone, and the server would not run them."""
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

    # Turning the client away.

    def turn_away(self, line: bytes) -> None:
        """Send the client an error after the replies to its earlier requests, and close."""
        session, upstream = self._session, self._upstream
        sign = session.drain() if not upstream.closing else None
        self._discard()
        if self._course.state is State.ORPHANED:
            self._outbound.send(sign or b"")  # requests judged before still run, and the sign shows when they have
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
        """Send the beginning of a request that makes the server close, and nothing after it."""
        self._outbound.send(error.beginning)
        self._discard()
        if self._course.state is State.ORPHANED:
            self._client.close()
            return
        self._course.move(State.REFUSED)
        self._client.ignore()
        if self._course.input_ended:
            self.end_refused()
        # A server that no longer requires a login waits for the rest of the request, which must not be sent unjudged.
        self._after(PATIENCE_SECONDS, lambda: self._lose_patience(error.reply))

    def _lose_patience(self, line: bytes) -> None:
        """Send the error in the server's place, unless replies to earlier requests are outstanding."""
        if self._session.owes:
            self._after(PATIENCE_SECONDS, lambda: self._lose_patience(line))
        else:
            self._client.say_farewell(line)

    # The proxy is stopping.

    def drain(self) -> None:
        """Close when everything that was sent has been answered."""
        session, upstream = self._session, self._upstream
        if self._comes_back_first():
            return
        if upstream.closing:
            self._client.abandon()
            return
        # No sign can follow a request sent in part: then wait for the earlier replies, and for the server to close.
        sign = session.drain()
        if sign is not None:
            self._let_answer(State.DRAINING)
            self._outbound.send(sign)
        elif session.owes:
            self._let_answer(State.YIELDING)
        else:
            self.end_input()

    # Replies arrive.

    def note_replies(self) -> bool:
        """End if only these replies were awaited; return False if there is more to do."""
        state, session = self._course.state, self._session
        self._end_late()
        if state is State.YIELDING and not session.owes:
            self._client.say_farewell(self.last_words)
        elif session.replies.outstanding:
            return False
        elif state is State.DRAINING:
            self._client.say_farewell(self.last_words)
        elif state is State.ENDED and not (self._upstream.ends_by_halves and self._progress.unsigned):
            self._upstream.leave()
        else:
            return False
        return True

    def _let_answer(self, state: State, last_words: bytes = b"") -> None:
        """Take no more requests while those that were sent are answered."""
        self.last_words = last_words
        self._course.move(state)
        self._client.ignore()

    def _discard(self) -> None:
        """Drop requests that were received but not sent."""
        self._session.discard()
        self._flow.account()

    def _comes_back_first(self) -> bool:
        """Return whether replies on shared connections must arrive first; `Conversation` then goes on."""
        if self._sharing is None or not self._sharing.away:
            return False
        self._sharing.leave()
        return True

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        self._course.after(seconds, guarded(work, self._client.fail))
