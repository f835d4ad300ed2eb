"""The client's side of a relayed connection: its transport, its beginning and its end.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Protocol, cast

import structlog

from proxy.metrics.traffic import Traffic
from proxy.relay import conversation, reasons
from proxy.relay.budget import Holding
from proxy.relay.conversation import Conversation
from proxy.relay.farewell import Farewell
from proxy.relay.fence import Fence
from proxy.relay.flow import set_reading
from proxy.relay.hangup import left_unread
from proxy.relay.later import guarded, start
from proxy.relay.port import drop, nothing
from proxy.relay.state import BEGUN, OVER, TAKING, Course, State
from proxy.relay.upstream import UpstreamConnection
from proxy.session.pipeline import Pipeline

log = structlog.get_logger("proxy.relay")


class Surroundings(conversation.Surroundings, Protocol):
    """The part of the proxy's server object that a connection uses.

    Attributes:
        traffic: counts bytes.
    """

    traffic: Traffic

    def orphan(self, pipeline: Pipeline) -> None:
        """Record that a client's pipeline has run: the server has closed the connection."""

    async def connect_upstream(self, factory: Callable[[Fence], asyncio.Protocol]) -> None:
        """Connect to the upstream server. Raises OSError or TimeoutError, within a limited time."""

    def upstream_error(self, error: Exception) -> bytes:
        """Return the error line for a client when the upstream server cannot be reached."""

    def opened(self, connection: ClientConnection) -> None:
        """Record a new connection."""

    def closed(self, connection: ClientConnection) -> None:
        """Record that a connection has ended."""


class First(Enum):
    """How much of its first request the client has sent."""

    AWAITED = "nothing has arrived"
    BEGUN = "part of a request has arrived"
    THERE = "a whole request has arrived"


class ClientConnection(asyncio.Protocol):
    """A client's connection: connects the client to the server, and closes both sides in order.

    Args:
        surroundings: the proxy's server object.
        overhear: examines the client's bytes while no server is connected: the client may be a proxy, even this one.

    Attributes:
        source: the client's address for log lines, if a load balancer reported one.
    """

    def __init__(self, surroundings: Surroundings, overhear: Callable[[bytes], None] = drop) -> None:
        self._surroundings = surroundings
        self._overhear = overhear
        self.source: str | None = None
        self._course = Course()
        self._transport: asyncio.Transport
        self._connecting: asyncio.Task[None] | None = None
        self._conversation: Conversation | None = None  # None until a server is connected, and at the end
        self._pipeline: Pipeline | None = None
        self._early = b""  # bytes received before the server was connected
        self._holding = Holding(surroundings.held)
        self._server_is_reading = False  # after the conversation: whether the server may still read what was sent
        self._made = False
        self._first = First.AWAITED
        self._finishes_after_first = False  # close once the first request has been answered

    @property
    def who(self) -> dict[str, str]:
        """Fields that identify the client in log lines."""
        return {} if self.source is None else {"client": self.source}

    def fail(self, error: BaseException) -> None:
        """Close both sides after an internal error."""
        log.error("connection closed: internal error", state=self._course.state.name, exc_info=error, **self.who)
        self.abandon()

    @property
    def is_answered(self) -> bool:
        """Whether the client has gone, or has been sent everything and only has to read it."""
        return self._course.state in OVER

    # The client's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start connecting to the server."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's
        self._made = True
        self._surroundings.traffic.opened("client", transport)
        self._surroundings.opened(self)
        self._connecting = start(self._connect(), self.fail)

    def data_received(self, data: bytes) -> None:
        """Handle the first bytes, before or after the server is connected."""
        self._first = First.THERE
        self.rebind()
        vars(self).get("data_received", self._take)(data)
        if self._conversation is not None and self._conversation.has_only_begun:
            self._first = First.BEGUN
        if self._finishes_after_first:
            self.finish_after_first_request()

    def _take(self, data: bytes) -> None:
        if self._conversation is not None:
            self._conversation.receive(data)
        elif self._course.state in (State.CONNECTING, State.FINISHING):
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        """Buffer bytes until the server is connected. This may be called again: the loop may read once more
        before it pauses."""
        self._early += data
        if not self._holding.account(len(self._early), 0, nothing):
            line = reasons.no_room(self._surroundings.metrics, self._surroundings.held, self._holding.bytes, self.who)
            self._give_up_connecting()
            self.say_farewell(line)
            return
        self._overhear(self._early)
        set_reading(self._transport, False)

    def receive_by(self, receiver: Callable[[bytes], None]) -> None:
        """Set the function that takes received bytes."""
        # Set on the instance: saves a few percent of a request's cost. `set_protocol` makes the loop look it up again.
        self.data_received = receiver  # type: ignore[method-assign,assignment]
        if not self._transport.is_closing():
            self._transport.set_protocol(self)

    def ignore(self) -> None:
        """Keep reading, but drop the bytes: new requests get no replies."""
        self.receive_by(drop)

    def rebind(self) -> None:
        """Use the receiver that fits the current state for the client's next bytes."""
        if self._conversation is not None and self._first is not First.AWAITED:
            self._conversation.rebind()

    def pause_writing(self) -> None:
        """The client does not read fast enough: pause reading from the server."""
        self._holding.note_unread(self._transport.get_write_buffer_size())
        if self._conversation is not None:
            self._conversation.pause_replies()

    def resume_writing(self) -> None:
        """The client has caught up: resume reading from the server."""
        self._holding.note_unread(0)
        if self._conversation is not None:
            self._conversation.resume_replies()

    # Upstream (relay.upstream.Downstream).

    async def _connect(self) -> None:
        try:
            await self._surroundings.connect_upstream(self._new_upstream)
        except (OSError, TimeoutError) as error:
            if self._course.state is State.ORPHANED:
                self.close()
            elif self._course.state in (State.CONNECTING, State.FINISHING):
                self.say_farewell(self._surroundings.upstream_error(error))
                self.receive_by(self._overhear)

    def _new_upstream(self, fence: Fence) -> UpstreamConnection:
        return UpstreamConnection(self, self._transport.write, self._surroundings.traffic, fence)

    def attach(self, upstream: UpstreamConnection) -> bool:
        """Attach the connected upstream side; return False if the client has gone meanwhile."""
        if self._course.state not in (State.CONNECTING, State.FINISHING, State.ORPHANED):
            return False
        try:
            self._begin(upstream)
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection must not stay half alive
            self.fail(error)
            return False
        return True

    def _begin(self, upstream: UpstreamConnection) -> None:
        self._connecting = None  # cancelling this task now would close the connection that it has just made
        self._conversation = talk = Conversation(
            self, self._surroundings, self._course, self._transport, upstream, self._holding
        )
        self._pipeline = talk.pipeline
        early, self._early = self._early, b""
        talk.begin(early)
        if self._course.state not in OVER and talk.has_only_begun:
            self._first = First.BEGUN
        self.rebind()
        if self._finishes_after_first:
            self.finish_after_first_request()

    def upstream_lost(self, refusal: Exception | None) -> None:
        """Handle the server's close: pass on what is left, then close the client's connection."""
        pipeline, self._pipeline = self._pipeline, None  # breaks a reference cycle with both sides
        if pipeline is not None:
            self._surroundings.orphan(pipeline)
        self._server_is_reading = False
        if self._course.state is State.CLOSED:
            self._surroundings.closed(self)
        if self._course.state in OVER:
            return
        last_words = self._conversation.break_off() if self._conversation is not None else b""
        if self._course.state is State.ORPHANED:
            self.close()
            return
        self.say_farewell(last_words if refusal is None else self._surroundings.upstream_error(refusal))

    # The proxy is stopping.

    def finish_after_first_request(self) -> None:
        """Finish after the client's first request is answered: another process now accepts clients."""
        talk = self._conversation
        waits = self._course.state in (State.CONNECTING, State.RELAYING, State.HELD) and not self._course.input_ended
        if talk is None or self._first is First.AWAITED:
            lacks_first = True
        elif self._finishes_after_first:
            lacks_first = talk.has_begun_request
        else:
            lacks_first = self._first is First.BEGUN and talk.has_only_begun
        if waits and lacks_first:
            self._finishes_after_first = True
            if talk is not None and self._first is not First.AWAITED:
                self.receive_by(self._take_rest)
        else:
            self._finishes_after_first = False
            self.finish()

    def _take_rest(self, data: bytes) -> None:
        """Receive the rest of the first request, then finish."""
        self._take(data)
        self.finish_after_first_request()

    def finish(self) -> None:
        """Take no more requests; close when all that arrived have been answered."""
        if self._first is First.AWAITED and self._course.state in (State.RELAYING, State.ENDED):
            self._abandon_unused()
            self.say_farewell(b"")
        elif self._conversation is not None:
            self._conversation.finish()
        elif self._course.state is State.CONNECTING and not self._early:
            self.abandon()
        elif self._course.state is State.CONNECTING:
            self._course.move(State.FINISHING)
            set_reading(self._transport, False)

    def cut_short(self) -> bool:
        """Drop the requests that wait, if any; close when those that were sent have been answered."""
        return self._conversation is not None and self._conversation.cut_short()

    # The end.

    def eof_received(self) -> bool:
        """Forward the client's half close to the server, after the client's last request; replies may still arrive."""
        self._course.input_ended = True
        self._surroundings.traffic.look(self._transport)
        if self._conversation is not None:
            self._conversation.note_half_close()
        # TLS has no half close: the loop closes the connection whatever this returns.
        return self._course.state is not State.FAREWELL and self._transport.can_write_eof()

    def dropped(self) -> None:
        """Act as on `connection_lost`: the loop closed the transport without calling it."""
        if self._made:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the client's disconnection: its earlier requests still reach the server, as without a proxy."""
        self._surroundings.traffic.closed(self._transport)
        if isinstance(exc, OSError):
            self._salvage()
        if self._course.state in (State.ORPHANED, State.CLOSED):
            return
        talk = self._conversation
        has_left_something = bool(self._early) if talk is None else talk.has_left_something
        if self._course.state not in BEGUN or not has_left_something:
            self.close()
            return
        self._course.move(State.ORPHANED)
        if talk is not None:
            talk.note_orphaned()

    def _salvage(self) -> None:
        """Take the bytes that the client sent before the connection was reset: after a failed write the loop does not
        read them."""
        if self._course.input_ended or self._transport.get_extra_info("sslcontext") is not None:
            return
        try:
            if self._conversation is not None:
                self._conversation.leave_shared()  # a lane can give no request back to a client that has gone
            for part in left_unread(self._transport):
                if self._course.state is State.CONNECTING or self._course.state in TAKING:
                    self.data_received(part)
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection must not stay half alive
            self.fail(error)

    def say_farewell(self, line: bytes) -> None:
        """Send a last line, which may be empty, and close without a reset, so that the client can read the line."""
        self._course.move(State.FAREWELL)
        set_reading(self._transport, not self._course.input_ended)
        self._let_go()
        self.ignore()
        if not self._transport.is_closing():
            Farewell(self._transport, self._after, self._holding).say(line, ended=self._course.input_ended)

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        self._course.after(seconds, guarded(work, self.fail))

    def abandon(self) -> None:
        """Close without waiting for replies."""
        self._give_up_connecting()
        self._early = b""
        self._surroundings.traffic.look(self._transport)
        if self._conversation is not None:
            self._conversation.abandon()
        self._transport.abort()
        if self._course.state in (State.CONNECTING, State.ORPHANED):
            # Do not wait until the loop calls `connection_lost`: a connection to the server that is made before then
            # would attach to this client, only to be closed.
            self.close()

    def _give_up_connecting(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()

    def close(self) -> None:
        """Close both sides: nothing is left to be sent for a client that has gone."""
        self._course.move(State.CLOSED)
        set_reading(self._transport, False)
        self._abandon_unused()
        self._let_go()
        if self._connecting is not asyncio.current_task():
            self._give_up_connecting()
        self._connecting = None
        self.ignore()
        if not self._server_is_reading:
            self._surroundings.closed(self)

    def _abandon_unused(self) -> None:
        """Close the server's side at once if the client has sent nothing that the server must read."""
        if self._conversation is not None and self._first is First.AWAITED:
            self._conversation.abandon()

    def _let_go(self) -> None:
        """Drop buffered requests; let the server read everything that was sent."""
        self._holding.end()
        self._early = b""
        talk, self._conversation = self._conversation, None
        if talk is not None:
            self._server_is_reading = talk.end()
