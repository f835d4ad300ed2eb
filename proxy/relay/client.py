"""The client's side of a relayed connection: the asyncio shell of a session, with one explicit state.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, cast

import structlog

from proxy.metrics.table import Metrics
from proxy.metrics.traffic import Traffic
from proxy.relay.budget import HeldBudget, Holding
from proxy.relay.farewell import Farewell
from proxy.relay.fence import Fence
from proxy.relay.hangup import has_hung_up
from proxy.relay.lanes import Lanes
from proxy.relay.sharing import Sharing
from proxy.relay.signs import Departed, Signs
from proxy.relay.turns import TurnQueue
from proxy.relay.upstream import Hold, UpstreamConnection
from proxy.relay.vigil import Vigil
from proxy.session.errors import OvertakenError, RefusedAtItsHeadError, RequestTooLargeError
from proxy.session.ground import Ground
from proxy.session.intake import TAIL_LIMIT
from proxy.session.pipeline import Pipeline
from proxy.session.question import Question
from proxy.session.reads import Late
from proxy.session.session import Session
from proxy.session.streams import LONG
from proxy.wire.framing import framed_end, is_beginning

log = structlog.get_logger("proxy.relay")

LARGE: Final = 32 * 1024
"""Bytes of a chunk behind which others are served before the client is read again: the loop would read on, many times,
from a client that sends without pause, and judging takes longer than passing on."""

PATIENCE_SECONDS: Final = 5.0
"""How long a client that is turned away waits for the replies to what it has sent before."""


class State(Enum):
    """Where a client's connection stands."""

    CONNECTING = "upstream is not there yet; what the client sends is kept"
    RELAYING = "requests go upstream as they come"
    HELD = "a request waits for the engine, and so does what follows it"
    FINISHING = "the proxy is about to stop: what has come still goes upstream, and no requests are taken afterwards"
    ORPHANED = "the client has gone: what it sent before still goes upstream"
    ENDED = "the client has sent its last request; replies still come"
    DRAINING = "no more requests are taken; those that were sent are being answered"
    YIELDING = "likewise, but for the last, behind which no sign can stand: it is given up then"
    REFUSED = "the server has been shown a request at which it closes, when those before it have been answered"
    FAREWELL = "the client has been told everything, and has a moment to read it"
    CLOSED = "the client has gone"


_LAST: Final = (State.DRAINING, State.YIELDING, State.REFUSED, State.FAREWELL)

_MOVES: Final[dict[State, frozenset[State]]] = {
    State.CONNECTING: frozenset((State.RELAYING, State.FINISHING, State.ORPHANED, State.FAREWELL, State.CLOSED)),
    State.RELAYING: frozenset((State.HELD, State.FINISHING, State.ORPHANED, State.ENDED, State.CLOSED, *_LAST)),
    State.HELD: frozenset((State.RELAYING, State.FINISHING, State.ORPHANED, State.ENDED, State.CLOSED, *_LAST)),
    State.FINISHING: frozenset((State.ORPHANED, State.ENDED, State.CLOSED, *_LAST)),
    State.ORPHANED: frozenset((State.CLOSED,)),
    State.ENDED: frozenset((State.FAREWELL, State.CLOSED)),
    State.DRAINING: frozenset((State.FAREWELL, State.CLOSED)),
    State.YIELDING: frozenset((State.FAREWELL, State.CLOSED)),
    State.REFUSED: frozenset((State.YIELDING, State.FAREWELL, State.CLOSED)),
    State.FAREWELL: frozenset((State.CLOSED,)),
    State.CLOSED: frozenset(),
}

_WAITING: Final = frozenset((State.HELD, State.FINISHING, State.ORPHANED))
"""Where a question may be open."""

_JUDGING: Final = frozenset((State.RELAYING, State.FINISHING, State.ORPHANED))
"""Where what has come and waits for its turn is judged."""

_BEGUN: Final = frozenset((State.CONNECTING, State.RELAYING, State.HELD, State.FINISHING))
"""Where what has come, and has not been sent on, is still to run."""

_READING: Final = frozenset((State.RELAYING, *_LAST))
"""While it drains and says farewell it reads on, and drops what it reads: unread bytes would reset the connection."""


READ_WHILE_HELD: Final = 64 * 1024 * 1024
"""Bytes that are taken from a client while the replies to what it has sent before are awaited."""


class IllegalMoveError(Exception):
    """A state was to follow another that it cannot follow: a defect of the proxy."""


class Surroundings(Protocol):
    """What a connection needs of the server that it belongs to.

    Attributes:
        held: the bytes that all connections hold.
        queue: gives connections their turns.
        metrics: where to count.
        traffic: counts bytes.
        lanes: the shared connections, if there are any.
        ground: what all sessions stand on.
    """

    held: HeldBudget
    queue: TurnQueue
    metrics: Metrics
    traffic: Traffic
    lanes: Lanes | None
    ground: Ground

    def new_session(self) -> Session:
        """Return a session for a new client, once `connect_upstream` has succeeded."""

    @property
    def is_plain(self) -> Callable[[bytes], bool]:
        """Returns whether a chunk of an ordinary session can go as it came. `rebind` tells when it is another one."""

    def orphan(self, pipeline: Pipeline) -> None:
        """Note that the server has closed the connection of a client, whose requests have run."""

    def now(self) -> float:
        """Return the server's clock, in Unix ms."""

    async def connect_upstream(self, factory: Callable[[Fence], asyncio.Protocol]) -> None:
        """Open a connection to the upstream server. Raises OSError or TimeoutError, bounded in time."""

    def upstream_error(self, error: Exception) -> bytes:
        """Return the error line for a client when the upstream server cannot be reached."""

    async def answer(self, question: Question) -> None:
        """Do what a session asks for. Raises ConnectionError or TimeoutError, bounded in time."""

    async def round_trip(self) -> None:
        """Wait until the server has answered the proxy. Raises ConnectionError or TimeoutError, bounded in time."""

    def opened(self, connection: ClientConnection) -> None:
        """Note a new connection."""

    def closed(self, connection: ClientConnection) -> None:
        """Note that a connection has ended."""


_SENDING: Final = frozenset((State.RELAYING, State.HELD, State.FINISHING, State.ORPHANED))
"""What the client has sent goes to the server, which has not been told that this was the last."""

_UNREAD: Final = frozenset((State.ENDED, State.DRAINING, State.YIELDING, State.REFUSED))
"""What comes is not read as requests any more, and replies still come."""

_COLLECTING: Final = _SENDING | {State.ENDED, State.DRAINING, State.YIELDING}
"""Replies may wait for another one that is asked for once more."""


class ClientConnection(asyncio.Protocol):
    """The client's side.

    Args:
        surroundings: what it needs of the server that it belongs to.
        overhear: looks at what the client sends before it can be served: another proxy, or this one, may be the client.

    Attributes:
        source: where the client comes from, if a load balancer has said so; as the log shows it.
    """

    def __init__(self, surroundings: Surroundings, overhear: Callable[[bytes], None] = lambda _: None) -> None:
        self._surroundings = surroundings
        self._overhear = overhear
        self.source: str | None = None
        self._session: Session
        self._sharing: Sharing | None = None
        self._state = State.CONNECTING
        self._transport: asyncio.Transport
        self._upstream: UpstreamConnection | None = None
        self._pipeline: Pipeline | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._vigil: Vigil | None = None
        self._heard = -1  # as of the upstream's, when a request that may block was sent last, by TLS
        self._blocker = -1  # as of the session's, when these were the bytes that had been received and sent
        self._counts = 0, 0
        self._unsigned = False  # nothing will tell that all has been answered
        self._untold = False  # the client has ended, and the server been told of no end that it heeds for certain
        self._reads_on = False  # all the same, as its requests seem to block: its end stands behind them
        self._replied: asyncio.Future[None] | None = None  # done when everything sent so far has been answered
        self._early = b""  # came before upstream was there
        self._holding = Holding(surroundings.held)
        self._clogged = False  # upstream takes no more at present
        self._rests = False  # others are served first
        self._leaves = False  # upstream is still to come to the end of what it was sent
        self._made = False
        self._is_fresh = True  # it has asked for nothing yet
        self._parts = False  # it is to end when it has been answered
        self._input_ended = False
        self._last_words = b""  # for a client that is turned away, when its requests have been answered

    # The state.

    def _move(self, state: State) -> None:
        """Go over to another state: the only place where it changes.

        Raises:
            IllegalMoveError: it cannot follow the present one.
        """
        if state not in _MOVES[self._state]:
            raise IllegalMoveError(f"from {self._state.name} to {state.name}")
        self._state = state
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._regulate()

    def _is_stuffed(self) -> bool:
        """Return whether upstream takes no more requests, or has to answer some first."""
        return self._clogged or self._session.replies.crowded

    def _regulate(self) -> None:
        """Read from the client exactly while its bytes are wanted."""
        if self._vigil is None and self.awaits:
            self._vigil = Vigil(self, self._start_beside)
        if self._transport.is_closing():
            return
        wanted = self._state in _READING and not self._input_ended
        if self._state is State.RELAYING and (self._rests or self._is_stuffed() or self._session.unfinished):
            wanted = wanted and self._reads_on and not (self._rests or self._clogged)
            wanted = wanted and self._holding.bytes < self._most()
        elif self._sharing is not None and self._sharing.leaving:
            wanted = False  # what has come already is kept; the loop reads once before it can be told to pause
        elif self._state in (State.HELD, State.FINISHING):
            # A client may send all that it has before it reads a reply; those that are awaited must not wait for that.
            awaiting = self._replied is not None and not self._replied.done()
            wanted = awaiting and not self._input_ended and self._holding.bytes < self._most()
        if wanted != self._transport.is_reading():
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _is_held_up(self) -> bool:
        """Return whether requests wait only for upstream to take or to answer what it has: as long as it likes."""
        return self._upstream is not None and self._state in _JUDGING and self._is_stuffed()

    def _most(self) -> int:
        """Return how many bytes are taken from the client while replies are awaited."""
        return TAIL_LIMIT if self._session.waits_for_login else READ_WHILE_HELD

    def _relieved(self) -> None:
        """Go on, if nothing is in the way any more, when upstream has taken or answered something."""
        if self._state in _JUDGING and self._session.unfinished and not self._is_stuffed():
            self._rest()
        self._regulate()

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        """Do something later, unless the state changes before."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the connection must not stay half alive
                self.fail(error)

        self._timer = asyncio.get_running_loop().call_later(seconds, run)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._start_beside(work)

    def _start_beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    @property
    def who(self) -> dict[str, str]:
        """What log lines about this client say of it."""
        return {} if self.source is None else {"client": self.source}

    def fail(self, error: BaseException) -> None:
        """End both sides: nothing may go on half alive."""
        log.error("connection closed: internal error", state=self._state.name, exc_info=error, **self.who)
        self.abandon()

    # The client's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to connect upstream."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop derives its own from none
        self._made = True
        self._surroundings.traffic.opened("client", transport)
        self._surroundings.opened(self)
        self._start(self._connect())

    def data_received(self, data: bytes) -> None:
        """Take what comes first, before or after upstream is there."""
        self._is_fresh = False
        self.rebind()
        vars(self).get("data_received", self._judge)(data)
        if self._parts:
            self.part()

    def eof_received(self) -> bool:
        """Let the client's half close reach upstream behind its last request; replies may still come."""
        self._input_ended = True
        self._surroundings.traffic.look(self._transport)
        if self._state is State.RELAYING:
            self._end_input()
        elif self._state is State.REFUSED:
            self._end_refused()
        self._see_end()
        # TLS has no half close: the loop closes whatever is returned.
        return self._state is not State.FAREWELL and self._transport.can_write_eof()

    def dropped(self) -> None:
        """The loop has closed the transport, made or not, without a word to its protocol."""
        if self._made:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: what it sent before still reaches upstream, as it would without a proxy."""
        self._surroundings.traffic.closed(self._transport)
        if self._state in (State.ORPHANED, State.CLOSED):
            return
        if not self._has_left_something():
            self._close()
            return
        self._move(State.ORPHANED)
        if self._sharing is not None:
            self._sharing.silence()
        if self._upstream is not None:
            self._upstream.silence()
            self._relieved()
        self._see_end()

    def _has_left_something(self) -> bool:
        """Return whether something that the client has sent is still to be sent on."""
        if self._state not in _BEGUN:
            return False
        if self._upstream is None:
            return bool(self._early)
        if self._sharing is not None and self._sharing.kept:
            return True
        return self._session.question is not None or self._session.unfinished

    def _close(self) -> None:
        self._move(State.CLOSED)
        self._let_go()
        self._task = None
        self._receive_by(_drop)
        if not self._leaves:
            self._surroundings.closed(self)

    def _let_go(self) -> None:
        """Let the server come to the end of what it was sent, and keep nothing that the client has sent.

        The session goes at once, by its last reference: until the collector finds it others may need what it holds.
        """
        self._holding.end()
        self._early = b""
        upstream, self._upstream = self._upstream, None
        if self._sharing is not None:
            self._sharing.end()
            self._sharing = None
        if self._vigil is not None:
            self._vigil.end()
        if upstream is not None:
            if self._replied is not None and not self._replied.done():
                self._replied.set_result(None)
            self._session.close()
            self._session.pipeline.sender = Departed(upstream)
            del self._session
            self._leaves = not upstream.lost
            upstream.leave()

    def pause_writing(self) -> None:
        """The client does not read fast enough: let upstream wait."""
        if self._sharing is not None:
            self._sharing.leave()
        if self._upstream is not None:
            self._upstream.pause(Hold.FULL)

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._upstream is not None:
            self._upstream.resume(Hold.FULL)

    # Requests.

    async def _connect(self) -> None:
        try:
            await self._surroundings.connect_upstream(self._new_upstream)
        except (OSError, TimeoutError) as error:
            if self._state is State.ORPHANED:
                self._close()
            elif self._state in (State.CONNECTING, State.FINISHING):
                self._say_farewell(self._surroundings.upstream_error(error))
                self._receive_by(self._overhear)

    def _new_upstream(self, fence: Fence) -> UpstreamConnection:
        return UpstreamConnection(self, self._transport.write, self._surroundings.traffic, fence)

    def attach(self, upstream: UpstreamConnection) -> bool:
        """Take the upstream connection, which is there now; return False when the client has gone meanwhile."""
        if self._state not in (State.CONNECTING, State.FINISHING, State.ORPHANED):
            return False
        try:
            self._begin(upstream)
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection must not stay half alive
            self.fail(error)
            return False
        return True

    def _begin(self, upstream: UpstreamConnection) -> None:
        self._session = session = self._surroundings.new_session()
        self._upstream = upstream
        self._task = None  # that which connects is about to end: to cancel it now would close upstream without a word
        self._pipeline = session.pipeline
        session.pipeline.sender = Signs(session, upstream, self)
        surroundings = self._surroundings
        if surroundings.lanes is not None:
            self._sharing = Sharing(self, self._transport.write, session, surroundings.ground, surroundings.lanes)
        if self._state is State.CONNECTING:
            self._move(State.RELAYING)
        elif self._state is State.ORPHANED:
            upstream.silence()
        early, self._early = self._early, b""
        if early:
            self._pass_on(lambda: session.receive(early, self._surroundings.now()))
        elif self._input_ended:
            self._end_input()
        self.rebind()
        if self._parts:
            self.part()

    def rebind(self) -> None:
        """Judge what comes by the check that is right now."""
        if self._is_fresh or self._state not in (State.RELAYING, State.HELD) or self._upstream is None:
            return
        session, is_plain = self._session, self._surroundings.is_plain
        upstream, judge, lengthen, now = self._upstream, self._judge, session.lengthen, self._surroundings.now
        send, reads = upstream.write, session.reads

        def receive(data: bytes) -> None:
            if not session.ordinary:
                judge(data)
            elif is_plain(data):
                reads.quiet = False
                send(data)
                if len(data) > LONG:
                    lengthen()
            elif (guarded := session.guard(data, now())) is not None:
                upstream.substitute(session.replies)
                send(guarded)
            else:
                judge(data)

        self._receive_by(receive if self._sharing is None else self._sharing.receiver(receive))

    # Shared connections (relay.sharing.Host).

    def come_back(self, kept: bytes) -> None:
        """Go on over the client's own connection, with what has come and has not been sent."""
        self.rebind()
        if kept and self._state in (State.RELAYING, State.HELD):
            self.data_received(kept)
        elif kept and self._state in _JUDGING:
            self._pass_on(lambda: self._session.receive(kept, self._surroundings.now()))
        if self._upstream is not None:
            self._account()
        if self._state in _JUDGING and not (self._session.unfinished or self._session.question is not None):
            self._proceed()

    def backlog(self) -> int:
        """Return how many bytes wait for the client to read them."""
        return self._transport.get_write_buffer_size()

    def hear_own(self, hear: Callable[[bytes], None] | None) -> None:
        """Have what comes on the client's own connection taken by something; by the client again, if None."""
        if self._upstream is not None and self._state is not State.ORPHANED:
            self._upstream.deliver_by(hear or self._transport.write)

    def hold(self, *, midway: bool) -> None:
        """Read no more from the client's own connection while what has come there waits for a reply; or go on."""
        if self._upstream is not None:
            (self._upstream.pause if midway else self._upstream.resume)(Hold.MIDWAY)

    def regulate(self) -> None:
        """Read from the client exactly while its bytes are wanted; count what it has kept."""
        self._account()
        self._regulate()

    def _comes_back_first(self) -> bool:
        """Return whether replies to what was sent over shared connections are to come first; `come_back` goes on."""
        if self._sharing is None or not self._sharing.away:
            return False
        self._sharing.leave()
        return True

    @property
    def sends(self) -> bool:
        """Whether what the client has sent goes to the server, which has not been told that this was the last."""
        return self._state in _SENDING

    @property
    def ended(self) -> bool:
        """Whether the server has been told so."""
        return self._state is State.ENDED

    @property
    def refused(self) -> bool:
        """Whether the server has been shown a request at which it closes."""
        return self._state is State.REFUSED

    def _receive_by(self, receiver: Callable[[bytes], None]) -> None:
        # On the instance, and looked up by the loop when the protocol is set: a few per cent of what a request costs.
        self.data_received = receiver  # type: ignore[method-assign,assignment]
        if not self._transport.is_closing():
            self._transport.set_protocol(self)

    def _judge(self, data: bytes) -> None:
        """Pass requests on that may need more than that."""
        if self._upstream is None and self._state in (State.CONNECTING, State.FINISHING):
            # The loop reads once before it can be told to pause.
            self._early += data
            if not self._account():
                self._refuse_for_room()
                return
            self._overhear(self._early)
            self._regulate()
        elif self._state in (State.RELAYING, State.HELD, State.FINISHING):
            session = self._session
            if self._reads_on and self._is_held_up():
                self._pass_on(lambda: session.keep(data))
            else:
                self._pass_on(lambda: session.receive(data, self._surroundings.now()))
            if len(data) >= LARGE and self._state is State.RELAYING:
                self._rest()

    def _rest(self) -> None:
        """Let others be served before this client is read again."""
        if self._rests:
            return
        self._rests = True
        if not self._transport.is_closing() and self._transport.is_reading():
            self._transport.pause_reading()

        def go_on() -> None:
            self._rests = False
            self._go_on()

        self._wait_for_turn(go_on)

    def _wait_for_turn(self, work: Callable[[], None], *, answered: bool = False) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it is, the connection must not stay half alive
                self.fail(error)

        self._surroundings.queue.join(run, answered=answered)

    def _go_on(self) -> None:
        if self._state in _JUDGING and self._upstream is not None and not self._is_stuffed():
            session = self._session
            if session.unfinished:
                self._pass_on(lambda: session.go_on(self._surroundings.now()))
            elif session.question is None:
                self._proceed()
        self._regulate()

    def _pass_on(self, judge: Callable[[], bytes]) -> None:
        """Send upstream what a session makes of its input, and see to what it asks for."""
        if self._surroundings.lanes is not None:
            self._surroundings.lanes.flush()  # a key's first deadline goes behind what was judged without it
        session = self._session
        asked = session.question
        try:
            out = judge()
        except RequestTooLargeError:
            self._surroundings.metrics.requests_refused_total["request_limit"] += 1
            budget = self._surroundings.held
            advice = f"raise {budget.names}, if such requests are wanted"
            log.warning(
                "client closed: request larger than request_limit",
                bytes=session.held,
                limit=budget.largest,
                advice=advice,
                **self.who,
            )
            limit = f"{budget.names} ({budget.largest} bytes)"
            self._turn_away(f"-ERR expiremember-proxy: request larger than {limit}\r\n".encode())
            return
        except OvertakenError:
            self._surroundings.metrics.requests_refused_total["overtaken"] += 1
            log.warning("client closed: key got its first deadline during a slow upload", **self.who)
            self._turn_away(_OVERTAKEN)
            return
        except RefusedAtItsHeadError as error:
            self._let_refuse(error)
            return
        if session.stranger and self._upstream is not None:
            self._upstream.watch_for_login()
        if session.blocker != self._blocker:
            self._note_blocker()
        if out:
            self.send_out(out)
        if not self._account():
            self._refuse_for_room()
            return
        question = session.question
        if question is None:
            if self._state is not State.RELAYING or session.unfinished or self._input_ended or session.replies.crowded:
                self._proceed()
        elif question is asked:
            self._regulate()  # more has come while it is being answered
        else:
            if self._state is State.RELAYING:
                self._move(State.HELD)
            self._start(self._answer(question))

    def _account(self) -> bool:
        """Count what this connection holds of its requests; return whether that is still allowed."""
        upstream, sharing = self._upstream, self._sharing
        waiting = len(self._early) + (self._session.held if upstream is not None else 0)
        waiting += len(sharing.kept) if sharing is not None else 0
        unsent = upstream.unsent if upstream is not None else 0
        return self._holding.account(waiting, unsent, self._account)

    def _proceed(self) -> None:
        """Do what is next where no question is open: judge on, take more, or see to the end."""
        if self._state is State.HELD:
            self._move(State.RELAYING)
        if self._session.unfinished:
            self._rest()
        elif self._state is State.ORPHANED:
            self._close()
        elif self._input_ended:
            self._end_input()
        elif self._state is State.FINISHING:
            self._drain()
        else:
            self._regulate()

    def _note_blocker(self) -> None:
        """Note how much was sent in front of a request that may block, or of an earlier one if nothing was answered."""
        assert self._upstream is not None
        counts = self._upstream.counts()
        if counts[0] != self._counts[0] or self._blocker < self._session.replies.settled:
            self._counts = counts
        self._blocker = self._session.blocker
        if not self._upstream.ends_by_halves:
            self._heard = self._upstream.heard()

    def send_out(self, out: bytes) -> None:
        """Send requests to the server, which takes them as long as it has not been told that there come no more."""
        assert self._upstream is not None
        if self._session.replies.active:
            self._upstream.substitute(self._session.replies)
            if self._session.replies.wants_probe:
                out += self._session.probe() or b""
        if not self._upstream.closing:
            if len(out) > LONG or self._session.unfinished:  # a short turn's part of what is long
                self._session.lengthen()
            self._upstream.write(out)

    async def _answer(self, question: Question) -> None:
        """Do what a session asks for, and go on. What is asked next has a task, and so a turn, of its own."""
        answered = True
        began = time.monotonic()
        try:
            if question.replied:
                await self._until_replied()
            if self._state in _WAITING:
                await self._surroundings.answer(question)
        except (OSError, TimeoutError):
            answered = False  # the session goes on without
        metrics = self._surroundings.metrics
        metrics.requests_held_total += 1
        metrics.request_hold_seconds.observe(time.monotonic() - began)
        if self._surroundings.queue.is_busy:
            self._wait_for_turn(partial(self._resume, answered=answered), answered=True)
        else:
            self._resume(answered=answered)

    def _resume(self, *, answered: bool) -> None:
        if self._state in _WAITING:  # else it has been turned away
            self._pass_on(lambda: self._session.resume(self._surroundings.now(), answered=answered))

    async def _until_replied(self) -> None:
        """Wait until everything that the client has sent so far has been answered, or it has shown to be logged in."""
        session = self._session
        if self._upstream is None or self._upstream.closing or session.replies.unheard:
            return  # nothing comes any more
        sign = session.drain()
        if sign is not None or session.replies.outstanding:
            self._replied = replied = asyncio.get_running_loop().create_future()
            self.send_out(sign or b"")
            self._regulate()
            await replied

    def logged_in(self) -> None:
        """Note that the server's replies show the client to be logged in."""
        if self._upstream is None:
            return
        waits = self._session.waits_for_login
        self._session.login()
        if waits:
            self._wake()

    def replies_passed(self) -> None:
        """Take replies while some have to be replaced."""
        if self._upstream is None:
            return
        if self._sharing is not None:
            self._sharing.begun()
        sends = self._state in _SENDING or self._state is State.DRAINING
        if sends and (late := self._session.reads.take_late()):
            self._start_beside(self._read_again(self._session, late))
        holds = self._holding.bytes or self._session.replies.waiting
        if holds and not self._account() and self._state in _COLLECTING:
            self._refuse_for_room(at_once=True)
            return
        if self._session.replies.wants_probe and sends:
            self.send_out(b"")
        may_end = self._session.take_settled() and self._input_ended
        if self._state is State.YIELDING and not self._session.owes:
            self._say_farewell(self._last_words)
        elif not self._session.replies.outstanding:
            self._settled()
        elif self._state in _JUDGING:
            self._relieved()
        if may_end and self._state in (State.RELAYING, State.FINISHING) and self._session.question is None:
            self._proceed()

    async def _read_again(self, session: Session, late: list[Late]) -> None:
        """Send reads once more whose replies have come too late, when what was due has been removed."""
        keys = tuple({key: None for read in late for key in read.keys})
        with suppress(OSError, TimeoutError):  # else the client's own connection does it alone
            await self._surroundings.answer(Question(due=keys))
        if self._upstream is not None and (self._state in _SENDING or self._state is State.DRAINING):
            self.send_out(session.read_again(late, self._surroundings.now()))

    def _wake(self) -> None:
        if self._replied is not None and not self._replied.done():
            self._replied.set_result(None)
            self._regulate()

    def _settled(self) -> None:
        """Note that all replies that had to be replaced have been."""
        self._wake()
        if self._state is State.DRAINING:
            self._say_farewell(b"")
        elif self._state is State.ENDED and self._upstream is not None and not self._upstream.ends_by_halves:
            self._upstream.leave()
        else:
            self._relieved()

    def set_clogged(self, clogged: bool) -> None:
        """Note whether upstream takes no more at present."""
        self._clogged = clogged
        if self._upstream is not None:
            self._account()
            self._relieved()

    # Looking after a client that ends (relay.vigil.Host).

    @property
    def awaits(self) -> bool:
        """Whether something of the client's waits for replies, which take as long as the server likes."""
        upstream, state = self._upstream, self._state
        if upstream is None or upstream.closing:
            return False
        if state in _UNREAD:
            return self._untold if state is State.ENDED else self._input_ended and not self._untold
        if self._replied is not None and not self._replied.done():
            return True
        return self._is_held_up() or (self._input_ended and state in _JUDGING and self._session.reads.under_way > 0)

    @property
    def has_ended(self) -> bool:
        """Whether the client has ended its side, as far as is known without a look at its socket."""
        return self._input_ended or self._state is State.ORPHANED

    def has_gone(self) -> bool:
        """Return whether the client has ended its side, which the loop does not see while it does not read."""
        return self.has_ended or has_hung_up(self._transport)

    @property
    def is_heard(self) -> bool:
        """Whether what the server says is read."""
        return self._upstream is not None and self._upstream.is_reading

    def heard(self) -> int:
        """Return a number that changes when the server says something."""
        return 0 if self._upstream is None else self._upstream.heard()

    def progress(self) -> int:
        """Return a number that changes when the server answers: a sign, where it also tells something unasked."""
        if self._upstream is None:
            return 0
        return self._session.replies.settled if self._session.hears_unasked else self._upstream.heard()

    @property
    def may_block(self) -> bool:
        """Whether a request may keep what follows it from running, or nothing tells that all has run."""
        return self._unsigned or self._session.may_block

    @property
    def is_taken(self) -> bool:
        """Whether all has been sent, as far as this system knows."""
        return self._upstream is not None and not self._upstream.untaken

    def behind(self) -> int:
        """Return how many bytes have been sent since the request that may block, or in all."""
        if self._upstream is None:
            return 0
        return self._upstream.counts()[1] - (self._counts[1] if self._session.may_block else 0)

    @property
    def drops(self) -> bool:
        """Whether to give up drops requests of the client's; else what has been sent goes before the end."""
        halves = self._upstream is not None and self._upstream.ends_by_halves
        return not halves or self._session.held > 0 or self._session.unfinished

    async def round_trip(self) -> None:
        """Wait until the server has answered the proxy."""
        await self._surroundings.round_trip()

    def note_silence(self, *, silent: bool) -> None:
        """Read from a client that is held up, while the server says nothing: its end stands behind what it has sent."""
        self._reads_on = silent and self._is_held_up()
        self._regulate()

    def vigil_ended(self) -> None:
        """Note that the client is looked after no more."""
        self._vigil, self._reads_on = None, False

    def give_up(self) -> None:
        """Tell the server of the end: it does not come to what the client has sent since, be it sent on or not."""
        assert self._upstream is not None
        if self._task is not None:
            self._task.cancel()
        if self._state is State.ORPHANED:
            self._close()
            return
        self._discard()
        self._receive_by(_drop)
        self._untold = self._state is not State.ENDED and self._state in _UNREAD
        if self._state not in _UNREAD:
            self._move(State.ENDED)
        if self._upstream.ends_by_halves:
            self._upstream.end()
        elif self._upstream.ended_beneath:
            self._upstream.abort()
        else:
            self._upstream.leave()

    def _see_end(self) -> None:
        """Look after a client that has just ended."""
        if self._vigil is not None:
            self._vigil.note_end()
        elif self.awaits:
            self._vigil = Vigil(self, self._start_beside)

    # The end.

    def _end_input(self) -> None:
        """Let the client's half close reach upstream, behind all that it has sent."""
        if self._session.unfinished or self._session.reads.under_way or self._comes_back_first():
            return  # not yet: see `_proceed`; meanwhile the client is looked after
        upstream = self._upstream
        assert upstream is not None
        waits = self._waits_for_others() and upstream.end_beneath()
        sign = None if upstream.ends_by_halves or waits else self._session.drain()
        if sign is None and not (upstream.ends_by_halves or waits):
            upstream.end_beneath()  # a request has been sent in part: its rest will not come
        rest = self._session.intake.rest()
        self._account()
        # What stands between may not heed an end beneath TLS; behind a request that was cut off there is no sign.
        self._untold = not upstream.ends_by_halves
        self._unsigned = sign is None
        self._move(State.ENDED)
        if upstream.ends_by_halves:
            # A server that has to read more first gives what others bring to a client that waits no more. What is only
            # the beginning of a request means nothing to it.
            upstream.end(b"" if is_beginning(rest[framed_end(rest) :]) else rest)
        elif sign is not None and not self._session.replies.unheard:
            self.send_out(sign)
        elif sign is not None:
            upstream.leave()

    def _waits_for_others(self) -> bool:
        """Return whether a request that may block has been sent, and nothing has come since."""
        assert self._upstream is not None
        return self._session.may_block and self._upstream.heard() == self._heard

    def upstream_lost(self, refusal: Exception | None) -> None:
        """The server has closed: pass on what is left, then close the client's connection."""
        pipeline, self._pipeline = self._pipeline, None  # else a ring that keeps both sides until the collector comes
        if pipeline is not None:
            self._surroundings.orphan(pipeline)
        self._leaves = False
        if self._state is State.CLOSED:
            self._surroundings.closed(self)
        if self._state in (State.FAREWELL, State.CLOSED):
            return
        if refusal is not None:
            self._last_words = self._surroundings.upstream_error(refusal)
        if self._task is not None:
            self._task.cancel()
        if self._state is State.ORPHANED:
            self._close()
            return
        self._say_farewell(self._last_words)

    def _turn_away(self, line: bytes) -> None:
        """Send the client the error after the replies to what it sent before, and close."""
        sign = self._session.drain(line) if self._upstream is not None and not self._upstream.closing else None
        self._discard()
        if self._state is State.ORPHANED:
            self.send_out(sign or b"")  # behind what was judged before
            self._close()
            return
        if sign is not None:
            self._let_answer(State.DRAINING, line)
            self.send_out(sign)
        elif self._upstream is not None and not self._upstream.closing and self._session.owes:
            self._let_answer(State.YIELDING, line)
        else:
            self._say_farewell(line)
            return
        # On timeout, send the error anyway.
        self._after(PATIENCE_SECONDS, lambda: self._say_farewell(line))

    def _discard(self) -> None:
        """Keep nothing of what has come and not been sent: the client is turned away."""
        self._session.discard()
        self._account()

    def _refuse_for_room(self, *, at_once: bool = False) -> None:
        """Turn the client away: more is held of requests than `held_limit` allows.

        `at_once`: it is replies that wait for another one in front, and to wait for that would be to take in more.
        """
        self._surroundings.metrics.requests_refused_total["held_limit"] += 1
        log.warning("client closed: held_limit reached", bytes=self._holding.bytes, **self.who)
        line = _ALONE if self._holding.bytes > self._surroundings.held.limit else _TOGETHER
        if at_once and self._state is State.ORPHANED:
            self._close()
            return
        if self._upstream is not None and not at_once:
            self._turn_away(line)
            return
        if self._task is not None:
            self._task.cancel()
        self._say_farewell(line)

    def _let_refuse(self, error: RefusedAtItsHeadError) -> None:
        """Show the server the beginning of a request at which it closes, and nothing after it."""
        self.send_out(error.beginning)
        self._discard()
        if self._state is State.ORPHANED:
            self._close()
            return
        stops = self._state is State.FINISHING

        def lose_patience() -> None:
            if self._session.owes:  # what stands in front takes as long as the server likes
                self._after(PATIENCE_SECONDS, lose_patience)
            else:
                self._say_farewell(error.reply)

        self._move(State.REFUSED)
        self._receive_by(_drop)
        if self._input_ended:
            self._end_refused()
        if error.reply:
            # Should it have changed its mind about logins it waits for the rest, which must not come unjudged.
            self._after(PATIENCE_SECONDS, lose_patience)
        elif stops:
            self.finish()
        # A server that refuses silently keeps the connection until the client closes it.

    def _end_refused(self) -> None:
        """Let the client's half close reach the server: it may wait for that, having nothing to say, or be blocked."""
        assert self._upstream is not None
        if self._upstream.ends_by_halves:
            self._untold = True
            self._upstream.end()
        elif not self._session.answers:
            self._after(PATIENCE_SECONDS, lambda: self._say_farewell(b""))

    def _say_farewell(self, line: bytes) -> None:
        """Close so that the client can read what was said: an unread request would reset the connection."""
        self._move(State.FAREWELL)
        self._let_go()
        self._receive_by(_drop)
        if self._transport.is_closing():
            return
        Farewell(self._transport, self._after).say(line, ended=self._input_ended)

    def part(self) -> None:
        """Finish, once there is something to answer: another process serves those that come from now on."""
        waits = self._state in (State.CONNECTING, State.RELAYING) and not self._input_ended
        if waits and (self._is_fresh or (self._parts and (self._upstream is None or self._session.intake.has_begun))):
            self._parts = True
            if self._upstream is not None and not self._is_fresh:
                self._receive_by(self._take_rest)
        else:
            self._parts = False
            self.finish()

    def _take_rest(self, data: bytes) -> None:
        """Take what comes of the first request, and finish behind it."""
        self._judge(data)
        self.part()

    def finish(self) -> None:
        """Take no more requests; close when all that have come have been answered."""
        if self._state is State.CONNECTING and not self._early:
            self.abandon()
        elif self._state in (State.CONNECTING, State.HELD):
            self._move(State.FINISHING)
        elif self._state is State.RELAYING:
            self._move(State.FINISHING)
            self._proceed()
        elif self._state is State.REFUSED and not self._session.answers:
            if self._session.owes:
                self._let_answer(State.YIELDING)
            else:
                self._say_farewell(b"")  # nothing is said to it any more
        # Else no more requests come anyway, and upstream closes after the last reply.

    def _drain(self) -> None:
        """Close when all that was sent has been answered."""
        if self._comes_back_first():
            return
        if self._upstream is None or self._upstream.closing:
            self.abandon()
            return
        # No sign is answered after CLIENT REPLY OFF or SKIP, and none can follow a half-sent request: then wait for the
        # replies to what came before it, and for the server to close.
        sign = self._session.drain() if self._session.answers else None
        if sign is not None:
            self._let_answer(State.DRAINING)
            self.send_out(sign)
        elif self._session.owes:
            self._let_answer(State.YIELDING)
        else:
            self._end_input()

    def _let_answer(self, state: State, last_words: bytes = b"") -> None:
        """Take no more requests while those that were sent are being answered."""
        self._last_words = last_words
        self._move(state)
        self._receive_by(_drop)

    def abandon(self) -> None:
        """Close without waiting for replies."""
        if self._task is not None:
            self._task.cancel()
        self._early = b""
        self._surroundings.traffic.look(self._transport)
        if self._upstream is not None:
            self._upstream.abort()
        self._transport.abort()
        if self._state in (State.CONNECTING, State.ORPHANED):
            self._close()  # now: what connects could still attach, and the loop would close it without a word


_TOGETHER: Final = b"-ERR expiremember-proxy: too many unfinished requests are buffered (held_limit)\r\n"
_ALONE: Final = b"-ERR expiremember-proxy: unfinished requests of one client exceed held_limit: raise it\r\n"
_OVERTAKEN: Final = (
    b"-ERR expiremember-proxy: not run, the key got its first deadline while this request arrived; send it again\r\n"
)


def _drop(_: bytes) -> None:
    """Take bytes of a client that has been told its last."""
