"""The end of a client's requests: how the server is notified, and when the client is sent the last bytes.

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
    """The part of the client's side that `Ending` uses."""

    def ignore(self) -> None:
        """Keep reading, but drop the bytes: new requests get no replies."""

    def close(self) -> None:
        """Close both sides: nothing is left to be sent for a client that has gone."""

    def say_farewell(self, line: bytes) -> None:
        """Send a last line, which may be empty, and close so that the client can read it."""

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
        untold: whether the client has closed its side, but the server may never notice.
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
        "_was_held",
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
        self._was_held = False  # whether the half close had to wait for requests that were held
        self.untold = False
        self.last_words = b""

    # The client ends.

    def end_input(self) -> None:
        """Forward the client's half close to the server, after everything that the client has sent."""
        session, upstream = self._session, self._upstream
        if session.unfinished or session.reads.under_way or self._comes_back_first():
            self._was_held = True
            return  # `Conversation._proceed` calls this again; until then the vigil watches the client
        halves = upstream.ends_by_halves
        waits = self._progress.waits_for_others and upstream.end_beneath()
        # On a half close the server discards unsent replies. So if a reply that the client wants may be queued behind
        # unwanted ones, forward the half close only when a sign has been answered that stands behind all requests, or
        # in front of a request that blocks. Do the same if requests were held or got scripts in front of them: the
        # server would otherwise read the half close at another moment than without the proxy.
        differs = self._was_held or session.replies.outstanding
        defers = halves and (session.loss.is_possible or (differs and not session.may_block))
        sign = session.drain() if defers or not (halves or waits) else None
        if sign is None and not (halves or waits):
            upstream.end_beneath()  # no sign can follow a request sent in part: its rest will not come
        rest = session.intake.rest()
        self._flow.account()
        # Over TLS the server may not see the half close: a middlebox may ignore it.
        self.untold = not halves or defers
        # No sign can follow a request that was cut off.
        self._progress.unsigned = sign is None
        self._course.move(State.ENDED)
        if halves and not defers:
            # Do not wait for a sign: until the server reads the half close, a BLPOP may give this client an element
            # that another should get. Do not send an incomplete last request: it has no effect.
            upstream.end(b"" if is_beginning(rest[framed_end(rest) :]) else rest)
            self._note_leaver()
        else:
            if upstream.ended_beneath:
                self._note_leaver()
            if sign is not None:
                self._outbound.send(sign)

    @property
    def may_probe(self) -> bool:
        """Whether a probe (a loud sign) can still be sent: the client has closed its side, but its half close waits."""
        return self._course.state is State.ENDED and self.untold and not self._upstream.ended_beneath

    def end_refused(self) -> None:
        """Forward the half close: without it, a blocked server might never close."""
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
            self._note_leaver()

    def give_up(self) -> None:
        """Close the server's side and drop unsent requests: the client has gone, and the server would not run them."""
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
        self._note_leaver()

    # Turning the client away.

    def turn_away(self, line: bytes) -> None:
        """Send the client an error after the replies to its earlier requests, and close."""
        session, upstream = self._session, self._upstream
        sign = session.drain() if not upstream.closing else None
        self._discard()
        if self._course.state is State.ORPHANED:
            self._outbound.send(sign or b"")  # requests judged earlier still run; the reply to the sign shows when
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
        # Normally the server answers with an error and closes. If it no longer requires a login, it waits for the rest
        # of the request instead, which must not be sent unjudged: then the proxy sends the error itself.
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
        # No sign can follow a request sent in part: then wait for the server to close.
        sign = session.drain()
        if sign is not None:
            self._let_answer(State.DRAINING)
            self._outbound.send(sign)
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

    def _note_leaver(self) -> None:
        """Keep others' shared writes from overtaking the half close: the server could give this client their data."""
        if self._sharing is not None and self._session.may_block:
            self._sharing.note_leaver()

    def _discard(self) -> None:
        """Drop requests that were received but not sent."""
        self._session.discard()
        self._flow.account()

    def _comes_back_first(self) -> bool:
        """Return whether a reply on a shared connection must arrive first; after it, `Conversation` goes on."""
        if self._sharing is None or not self._sharing.away:
            return False
        self._sharing.leave()
        return True

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        self._course.after(seconds, guarded(work, self._client.fail))
