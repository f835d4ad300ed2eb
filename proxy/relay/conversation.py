"""One client's conversation with the server: judges and sends its requests, and returns the replies.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from proxy.relay import asking, ending, reasons
from proxy.relay.asking import Asking
from proxy.relay.budget import HeldBudget, Holding
from proxy.relay.ending import Ending
from proxy.relay.flow import Flow
from proxy.relay.inspection import Doing
from proxy.relay.lanes import Lanes
from proxy.relay.later import guarded, start
from proxy.relay.outbound import Outbound
from proxy.relay.port import nothing
from proxy.relay.progress import Progress
from proxy.relay.sharing import Sharing
from proxy.relay.signs import Departed, Signs
from proxy.relay.state import BEGUN, COLLECTING, JUDGING, OVER, TAKING, WAITING, Course, State
from proxy.relay.upstream import ReadPause, UpstreamConnection
from proxy.relay.waiting import Waiting
from proxy.session.errors import OvertakenError, RefusedAtItsHeadError, RequestTooLargeError
from proxy.session.ground import Ground
from proxy.session.question import Question
from proxy.session.reads import Late
from proxy.session.session import Session
from proxy.session.streams import LONG

LARGE: Final = 32 * 1024
"""After a chunk of this size, other clients are served before the proxy reads from this client again. Otherwise the
loop reads many times in a row from a client that sends without pause, and others wait while its chunks are judged."""


class Surroundings(asking.Engine, Protocol):
    """The part of the proxy's server object that a conversation uses.

    Attributes:
        held: the budget of held bytes.
        lanes: the shared connections, if any.
        ground: what all sessions share.
    """

    held: HeldBudget
    lanes: Lanes | None
    ground: Ground

    def new_session(self) -> Session:
        """Create a session for a new client, after `connect_upstream` has succeeded."""

    @property
    def is_plain(self) -> Callable[[bytes], bool]:
        """A function that returns whether a chunk of an ordinary session can be forwarded unchanged. Each
        `Conversation.rebind` reads this property again."""

    def now(self) -> float:
        """Return the server's clock, in Unix ms."""

    async def round_trip(self) -> None:
        """Wait until the server has answered the proxy. Raises ConnectionError or TimeoutError, in limited time."""

    async def inspect(self, near: bytes | None) -> Doing:
        """Return, within a bounded time, what the server does for the connection whose local address is `near`."""


class Client(ending.Client, Protocol):
    """The part of the client's side that a conversation uses."""

    @property
    def who(self) -> dict[str, str]:
        """Fields that identify the client in log lines."""

    def receive_by(self, receiver: Callable[[bytes], None]) -> None:
        """Set the function that takes bytes from the client."""

    def data_received(self, data: bytes) -> None:
        """Process bytes from the client with the current function."""


class Conversation:
    """Connects one client with the server, from when the server is connected until the client is sent the last bytes.

    Args:
        client: the client's side.
        surroundings: the proxy's server object.
        course: the connection's state.
        transport: the client's transport.
        upstream: the server's side.
        holding: counts the held bytes of the client's requests.

    Attributes:
        pipeline: represents the client's requests. Others use it to wait until these have run.
    """

    def __init__(
        self,
        client: Client,
        surroundings: Surroundings,
        course: Course,
        transport: asyncio.Transport,
        upstream: UpstreamConnection,
        holding: Holding,
    ) -> None:
        self._client = client
        self._surroundings = surroundings
        self._course = course
        self._upstream = upstream
        self._session = session = surroundings.new_session()
        self._outbound = outbound = Outbound(session, upstream)
        self._sharing: Sharing | None = None
        if (lanes := surroundings.lanes) is not None:
            self._sharing = Sharing(self, client, transport, session, upstream, outbound, surroundings.ground, lanes)
        self._asking = Asking(surroundings, self, client.fail)
        self._flow = Flow(transport, course, session, upstream, self._sharing, self._asking, holding)
        progress = Progress(session, upstream)
        self._ending = Ending(client, course, session, upstream, outbound, self._sharing, progress, self._flow)
        self._waiting = Waiting(
            transport, course, session, upstream, self._asking, self._flow, progress, self._ending,
            surroundings.round_trip, surroundings.inspect, partial(start, fail=client.fail),
        )  # fmt: skip
        self._progress = progress
        self.pipeline = session.pipeline
        self.pipeline.sender = Signs(session, upstream, course, outbound.send)
        upstream.audience = self
        course.moved = self.regulate

    def begin(self, early: bytes) -> None:
        """Begin with the bytes received before the server was connected."""
        if self._course.state is State.CONNECTING:
            self._course.move(State.RELAYING)
        elif self._course.state is State.ORPHANED:
            self._upstream.drop_replies()
        if early:
            self._pass_on(lambda: self._session.receive(early, self._surroundings.now()))
        elif self._course.input_ended:
            self._ending.end_input()

    # Requests.

    def rebind(self) -> None:
        """Use the receiver that fits the current state for the client's next bytes."""
        if self._course.state not in TAKING:
            return
        session, is_plain = self._session, self._surroundings.is_plain
        upstream, judge, lengthen, now = self._upstream, self.receive, session.lengthen, self._surroundings.now
        send, reads, pass_on = upstream.write, session.reads, self._pass_on

        def receive(data: bytes) -> None:
            if not session.ordinary:
                judge(data)
            elif is_plain(data):
                reads.quiet = False
                send(data)
                if len(data) > LONG:
                    lengthen()
            elif (out := session.guard(data, now())) is not None:
                if len(data) >= LARGE:
                    pass_on(lambda: out)  # this also counts the bytes of the chunk that the session keeps
                    return
                upstream.substitute(session.replies)
                send(out)
            else:
                judge(data)

        self._client.receive_by(receive if self._sharing is None else self._sharing.receiver(receive))

    def receive(self, data: bytes) -> None:
        """Process requests that may need more than forwarding."""
        if self._course.state not in TAKING:
            return
        session = self._session
        if self._flow.reads_on and self._flow.is_held_up:
            self._pass_on(lambda: session.keep(data))
        else:
            self._pass_on(lambda: session.receive(data, self._surroundings.now()))
        if len(data) >= LARGE and self._course.state is State.RELAYING:
            self._rest()

    def _rest(self) -> None:
        """Let other clients be served before this client is read again."""
        if self._flow.rest():
            self._surroundings.queue.join(guarded(self._go_on, self._client.fail))

    def _go_on(self) -> None:
        if self._course.state in OVER:
            return
        self._flow.rests = False
        if self._course.state in JUDGING and not self._flow.is_stuffed:
            session = self._session
            if session.unfinished:
                self._pass_on(lambda: session.go_on(self._surroundings.now()))
            elif session.question is None:
                self._proceed()
        self.regulate()

    def _pass_on(self, judge: Callable[[], bytes]) -> None:
        """Send the session's output to the server, and handle its question."""
        surroundings, session = self._surroundings, self._session
        if surroundings.lanes is not None:
            surroundings.lanes.flush()  # send shared requests first: `judge` may set a key's first deadline
        asked = session.question
        try:
            try:
                out = judge()
            finally:
                self._progress.note_judged()
        except RequestTooLargeError:
            who = self._client.who
            self._ending.turn_away(reasons.too_large(surroundings.metrics, surroundings.held, session.held, who))
            return
        except OvertakenError:
            self._ending.turn_away(reasons.overtaken(surroundings.metrics, self._client.who))
            return
        except RefusedAtItsHeadError as error:
            self._ending.let_refuse(error)
            return
        if not session.is_proved:
            self._upstream.watch_for_login(session.replies, session.logged_out)
        if out:
            self._outbound.send(out)
        if not self._flow.account():
            self._ending.turn_away(self._no_room())
            return
        question = session.question
        if question is None:
            relays = self._course.state is State.RELAYING and not self._course.input_ended
            if not relays or session.unfinished or session.replies.crowded:
                self._proceed()
        elif question is asked:
            self.regulate()  # more requests arrived while the question was open
        else:
            if self._course.state is State.RELAYING:
                self._course.move(State.HELD)
            self._asking.ask(question)

    def _no_room(self) -> bytes:
        """Return the error for a client when held requests exceed `held_limit`."""
        return reasons.no_room(self._surroundings.metrics, self._surroundings.held, self._flow.held, self._client.who)

    def _proceed(self) -> None:
        """Go on when no question is open: judge buffered requests, resume reading, or end."""
        if self._course.state is State.HELD:
            self._course.move(State.RELAYING)
        if self._session.unfinished:
            self._rest()
        elif self._course.state is State.ORPHANED:
            self._client.close()
        elif self._course.input_ended:
            self._ending.end_input()
        elif self._course.state is State.FINISHING:
            self._ending.drain()
        else:
            self.regulate()

    def regulate(self) -> None:
        """Read from the client exactly while its bytes are wanted, and keep a vigil while it waits."""
        if self._course.state not in OVER:
            self._waiting.look()
            self._flow.regulate()

    @property
    def has_begun_request(self) -> bool:
        """Whether a request has arrived in part."""
        return self._session.intake.has_begun

    @property
    def has_only_begun(self) -> bool:
        """Whether the session's first request has arrived only in part; that part may have been sent.

        Plain chunks bypass the session, so this can be true although earlier requests were sent.
        """
        return self.has_begun_request and not self._session.intake.reader.past_first

    # Questions (relay.asking.Asker).

    @property
    def waits(self) -> bool:
        """Whether the answer still matters. False once the client has been turned away."""
        return self._course.state in WAITING

    def ask_for_sign(self) -> bool:
        """Send a sign, to learn when everything that the client has sent has been answered."""
        if self._course.state in OVER or self._upstream.closing:
            return False  # there will be no more replies
        sign = self._session.drain()
        if sign is None and not self._session.replies.outstanding:
            return False
        self._outbound.send(sign or b"")
        return True

    def resume(self, *, answered: bool) -> None:
        """Go on with the held request."""
        if self.waits:
            self._pass_on(lambda: self._session.resume(self._surroundings.now(), answered=answered))

    # Shared connections (relay.sharing.Host).

    def come_back(self, kept: bytes) -> None:
        """Continue over the client's own connection, with bytes that were received but not sent."""
        self.rebind()
        if kept and self._course.state in TAKING:
            self._client.data_received(kept)
        elif kept and self._course.state in JUDGING:
            self._pass_on(lambda: self._session.receive(kept, self._surroundings.now()))
        if self._course.state in OVER:
            return
        self._flow.account()
        if self._course.state in JUDGING and not (self._session.unfinished or self._session.question is not None):
            self._proceed()

    def leave_shared(self) -> None:
        """Send what follows over the client's own connection."""
        if self._sharing is not None:
            self._sharing.leave()

    def note_kept(self) -> None:
        """Record the buffered bytes, and pause reading."""
        self._flow.account()
        self.regulate()

    # From upstream (relay.upstream.Audience).

    def logged_in(self) -> None:
        """Note that the server's replies show that the client is logged in."""
        waits = self._session.waits_for_login
        self._session.login()
        if waits:
            self._asking.note_replied()

    def replies_passed(self) -> None:
        """Act on replies that were passed on: resend late reads, continue or end."""
        session, course = self._session, self._course
        if self._sharing is not None:
            self._sharing.note_own_replies_done()
            if course.state in OVER:
                return
        sends = course.sends or course.state is State.DRAINING
        if sends and (late := session.reads.take_late()):
            start(self._read_again(session, late), self._client.fail)
        holds = self._flow.held or session.replies.waiting
        if holds and not self._flow.account() and course.state in COLLECTING:
            self._refuse_at_once()
            return
        if session.replies.wants_probe and (sends or self._ending.may_probe):
            self._outbound.send(b"")
        may_end = session.take_settled() and course.input_ended
        if not session.replies.outstanding:
            self._asking.note_replied()
        if not self._ending.note_replies() and (course.state in JUDGING or not session.replies.outstanding):
            self._relieved()
        if may_end and course.state in (State.RELAYING, State.FINISHING) and session.question is None:
            self._proceed()

    async def _read_again(self, session: Session, late: list[Late]) -> None:
        """Remove due members, and resend reads whose replies were late."""
        keys = tuple({key: None for read in late for key in read.keys})
        with suppress(OSError, TimeoutError):  # on failure a script on the client's own connection removes the members
            await self._surroundings.answer(Question(due=keys))
        if self._course.sends or self._course.state is State.DRAINING:
            self._outbound.send(session.read_again(late, self._surroundings.now()))

    def _refuse_at_once(self) -> None:
        """Turn the client away without waiting for more replies: they too would be buffered, behind an earlier one."""
        line = self._no_room()
        if self._course.state is State.ORPHANED:
            self._client.close()
            return
        self._asking.cancel()
        self._client.say_farewell(line)

    def set_clogged(self, clogged: bool) -> None:
        """Record whether writing to the server is paused because it does not read fast enough."""
        self._flow.clogged = clogged
        self._flow.account()
        self._relieved()

    def _relieved(self) -> None:
        """Go on if possible, after the server has read requests or answered some."""
        if self._course.state in JUDGING and self._session.unfinished and not self._flow.is_stuffed:
            self._rest()
        self.regulate()

    # From the client's side.

    def pause_replies(self) -> None:
        """The client does not read fast enough: pause reading from the server."""
        if self._sharing is not None:
            self._sharing.leave()
        self._upstream.pause(ReadPause.FULL)

    def resume_replies(self) -> None:
        """The client has caught up: resume reading from the server."""
        self._upstream.resume(ReadPause.FULL)

    def note_half_close(self) -> None:
        """Forward the client's half close to the server, after the client's last request."""
        if self._course.state is State.RELAYING:
            self._ending.end_input()
        elif self._course.state is State.REFUSED:
            self._ending.end_refused()
        if self._course.state not in OVER:
            self._waiting.note_left()

    @property
    def has_left_something(self) -> bool:
        """Whether something that the client has sent is still to be forwarded."""
        kept = self._sharing is not None and bool(self._sharing.kept)
        return kept or self._session.question is not None or self._session.unfinished

    def note_orphaned(self) -> None:
        """Drop the replies: the client has gone, but its earlier requests still go to the server."""
        if self._sharing is not None:
            self._sharing.drop_replies()
        self._upstream.drop_replies()
        self._relieved()
        self._waiting.note_left()

    def finish(self) -> None:
        """Take no more requests; close when all that arrived have been answered."""
        if self._course.state not in TAKING:
            return  # this connection takes no more requests, and ends after the last reply anyway
        is_held = self._course.state is State.HELD
        self._course.move(State.FINISHING)
        self._client.ignore()
        if not is_held:
            self._proceed()

    def cut_short(self) -> bool:
        """Drop the requests that wait, and close when those that were sent have been answered.

        Otherwise a request that waits now could still be running when `shutdown_timeout` ends and the proxy closes the
        connection.

        Returns:
            Whether any request was dropped.
        """
        if self._course.state not in BEGUN:
            return False
        drops = self.has_left_something
        if self._sharing is not None and self._sharing.away:
            self._sharing.kept = b""  # after the reply the client returns to its own connection, which then ends
            self._flow.account()
        else:
            self._ending.turn_away(b"")
        return drops

    def break_off(self) -> bytes:
        """Cancel the open question: the server has closed. Return the error for a client that is being turned away."""
        self._asking.cancel()
        return self._ending.last_words

    def abandon(self) -> None:
        """Close the server's side at once."""
        self._asking.cancel()
        self._upstream.abort()

    def end(self) -> bool:
        """Let the server read everything that was sent, and drop buffered requests.

        Drop every reference to the session, so that it is freed now, without the garbage collector.

        Returns:
            Whether the server may still be reading.
        """
        upstream = self._upstream
        if self._sharing is not None:
            self._sharing.end()
        self._waiting.end()
        self._asking.end()
        self._session.close()
        self.pipeline.sender = Departed(upstream)
        upstream.audience = None
        self._course.moved = nothing
        del self._session, self._outbound, self._sharing, self._asking, self._flow, self._ending, self._waiting
        del self._progress
        is_reading = not upstream.lost
        upstream.leave()
        return is_reading
