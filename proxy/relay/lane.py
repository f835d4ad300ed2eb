"""A shared connection to the server: carries requests of many clients, and passes each reply to its client.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from itertools import islice
from typing import Final, cast

import structlog

from proxy.loop import Droppable
from proxy.metrics.traffic import Traffic
from proxy.relay.fence import Fence, Membership
from proxy.relay.greeting import Greeting
from proxy.relay.long_reply import MANY_LINES, LongReply
from proxy.relay.port import LARGE, Port, Room, drop
from proxy.session.identity import Identity
from proxy.session.pipeline import Passed, Pipeline, Sender
from proxy.wire.first_line import StrayReplyError
from proxy.wire.replies import Replies, whole_replies

log = structlog.get_logger("proxy.relay")

_PING: Final = b"*1\r\n$4\r\nPING\r\n"


class State(Enum):
    """The state of a lane."""

    OPENING = "it logs in, and the server reports its identity"
    OPEN = "requests can be sent"
    ENDING = "the proxy is closing the connection"
    LOST = "the connection has closed"


class Obstacle(Enum):
    """A temporary reason why a lane takes no requests."""

    CLOGGED = "the server does not read fast enough"
    STALLED = "the server has not replied for some time, though it should"
    SLOW_CLIENT = "a client does not read its long reply"


class Load:
    """How much is under way on a lane.

    Args:
        ran: called when the requests that made the load long have run, or never will.

    Attributes:
        is_long: whether so much is under way that others may have to wait for it.
        unanswered: bytes sent since the lane was last idle; a busy server reads them in several pieces.
        replied: number of chunks of replies received.
        pipeline: represents the requests sent. Others use it to wait until these have run.
    """

    def __init__(self, ran: Callable[[Pipeline], None]) -> None:
        self.is_long = False
        self.unanswered = self.replied = 0
        self.pipeline = Pipeline()
        self._ran = ran

    def note_answered(self) -> None:
        """Note that nothing is under way any more."""
        self.unanswered = 0
        if self.is_long:
            self.is_long = False
            self._ran(self.pipeline)


class Lane(Droppable):
    """A shared connection, which belongs to no client.

    Args:
        identity: the identity of the clients that use it.
        login: the arguments of AUTH; empty if no login is needed.
        traffic: counts bytes.
        fence: keeps the connections to one server together.
        room: limits the replies that wait for clients.
        changed: called when the lane can take requests, or no longer can.
        ran: as in `Load`.
        may_resend: whether its requests can be sent again, because they change nothing.
        retires: whether a client that gets replies of many parts should return to its own connection.

    Attributes:
        load: how much is under way.
        state: the state of the lane.
        may_resend: as the argument.
        obstacles: why it takes no requests at present.
    """

    def __init__(
        self,
        identity: Identity,
        login: Iterable[str],
        traffic: Traffic,
        fence: Fence,
        room: Room,
        changed: Callable[[], None],
        ran: Callable[[Pipeline], None],
        *,
        may_resend: bool = False,
        retires: bool = True,
    ) -> None:
        self._changed = changed
        self._membership = Membership(fence, traffic)
        self._greeting = Greeting(identity, login)
        self._scripts: set[Hashable] | None = set()  # scripts whose text has run; None: digests do not work
        self._transport: asyncio.Transport
        self._replies = Replies()
        self._find = whole_replies(MUCH)
        self._ports: deque[Port] = deque()  # ports with unanswered requests, in the order of sending
        self._unheard = 0  # number of ports whose replies are not in the chunk that is being distributed
        self._long = LongReply(self, room, MANY_LINES if retires else sys.maxsize)
        self.load = Load(ran)
        self.load.pipeline.sender = _Signs(self)
        self.obstacles: set[Obstacle] = set()
        self.may_resend = may_resend
        self.state = State.OPENING
        self.data_received = self._greet  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start logging in."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's
        if self._membership.begin(self, self._transport):
            self._transport.write(self._greeting.requests)

    def _greet(self, data: bytes) -> None:
        self._greeting.receive(data, self._replies)
        if self.refusal:
            self.abort()
        elif self._greeting.over:
            self.state = State.OPEN
            self.data_received = self._distribute  # type: ignore[method-assign]
            self._transport.set_protocol(self)  # makes the loop look up `data_received` again
            self._changed()

    @property
    def refusal(self) -> str:
        """Why the lane cannot be used, for log lines; empty if nothing is wrong so far."""
        return self._greeting.refusal

    @property
    def usable(self) -> bool:
        """Whether requests can be sent now, and are likely to be answered soon."""
        return self.state is State.OPEN and not (self.obstacles or self.is_within_a_long_reply)

    @property
    def is_within_a_long_reply(self) -> bool:
        """Whether a long reply has arrived in part."""
        return self._long.come > LARGE or self._replies.left > LARGE

    @property
    def waits(self) -> bool:
        """Whether replies are outstanding."""
        return bool(self._ports)

    def send(self, ports: list[Port], data: bytes) -> None:
        """Send requests, one for each port."""
        self._transport.write(data)  # before the next line: if writing fails, no reply will come
        self._ports.extend(ports)
        self._unheard += len(ports)  # also while `_distribute` runs: its chunk has no replies to these

    def has_come(self, count: int) -> bool:
        """Return whether the next `count` replies are completely in the chunk that is being distributed."""
        return len(self._ports) - count >= self._unheard

    def watch(self, count: int, replacement: Callable[[Port], Port]) -> None:
        """Replace each of the next `count` ports by what `replacement` returns for it."""
        ports = self._ports
        ports.extendleft([replacement(ports.popleft()) for _ in range(min(count, len(ports)))][::-1])

    def has_script(self, script: Hashable) -> bool:
        """Return whether a script can be called by digest."""
        return self._scripts is not None and script in self._scripts

    def note_script(self, script: Hashable) -> None:
        """Note that the text of a script has run."""
        if self._scripts is not None:
            self._scripts.add(script)

    def lack_script(self, script: Hashable, *, for_good: bool) -> None:
        """Note that the server lacks a script or, with `for_good`, that digests do not work here."""
        if for_good:
            self._scripts = None
        elif self._scripts is not None:
            self._scripts.discard(script)

    def ping(self) -> Passed:
        """Send PING after all requests; return a function that returns whether it was answered."""
        port = Port(drop)
        port.busy = True
        self.send([port], _PING)
        return lambda: not port.busy

    def _distribute(self, data: bytes) -> None:
        self.load.replied += 1
        ports = self._ports
        if self._replies.between:
            replies = self._find(data)
            if 0 < len(replies) <= len(ports):
                self._unheard = len(ports) - len(replies)
                for reply in replies:
                    port = ports.popleft()
                    port.busy = False
                    try:
                        port.deliver(reply)
                        if port.settled is not None:
                            port.settled()
                    except Exception as error:  # noqa: BLE001 - one client's defect is not another's
                        port.broke(error)
                self._answered()
                self._overcome(Obstacle.STALLED)
                return
        self._distribute_pieces(data)

    def _distribute_pieces(self, data: bytes) -> None:
        was_usable, long = self.usable, self._long
        self.obstacles.discard(Obstacle.STALLED)
        self._unheard = len(self._ports)
        try:
            for piece, ends in self._replies.cut(data):
                if not self._ports:
                    raise StrayReplyError(piece[:100])
                port = self._ports[0]
                costly = long.grow(piece, ends=ends)
                if ends:
                    self._ports.popleft()
                    port.busy = False
                try:
                    port.deliver(piece)
                    if costly:
                        port.retire()
                    if ends and port.settled is not None:
                        port.settled()
                except Exception as error:  # noqa: BLE001
                    port.broke(error)
                if not ends and long.is_too_much_for(port):
                    long.hold_up(port)
        except StrayReplyError as error:
            log.error("shared connection closed: stray reply", reply=repr(error.args[0]))
            self.abort()
            return
        self._answered()
        if len(data) >= MUCH and not self._replies.left:
            self._rest()
        if self.may_resend and self.is_within_a_long_reply:
            long.plan_rescue()
        if self.usable != was_usable:
            self._changed()

    def _answered(self) -> None:
        if not self._ports:
            self.load.note_answered()

    def _meet(self, obstacle: Obstacle) -> None:
        self.obstacles.add(obstacle)
        self._changed()

    def _overcome(self, obstacle: Obstacle) -> None:
        if obstacle in self.obstacles:
            self.obstacles.discard(obstacle)
            self._changed()

    def _rest(self) -> None:
        """Serve clients before reading more: the loop would read many times in a row, and splitting replies is slow."""

        def go_on() -> None:
            if Obstacle.SLOW_CLIENT not in self.obstacles:
                self._resume()

        if self.state is State.OPEN:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(go_on)

    def _resume(self) -> None:
        if self.state is State.OPEN and not self._transport.is_closing():
            self._transport.resume_reading()

    # A long reply, and a client that does not read it (relay.long_reply.Host).

    @property
    def lost(self) -> bool:
        """Whether the connection has closed."""
        return self.state is State.LOST

    @property
    def others_wait(self) -> bool:
        """Whether more replies are outstanding behind the next one."""
        return len(self._ports) > 1

    def stop_reading(self) -> None:
        """Pause reading: a client must read its reply first."""
        self.obstacles.add(Obstacle.SLOW_CLIENT)
        self._transport.pause_reading()

    def read_on(self) -> None:
        """Resume reading."""
        self._resume()
        self._overcome(Obstacle.SLOW_CLIENT)

    def rescue(self) -> None:
        """Have clients behind a long reply resend their requests over their own connections, and drop the replies on
        this lane."""
        if self.state is not State.OPEN:
            return
        behind = {port: None for port in islice(self._ports, 1, None) if port.request}
        self._ports = deque(Port(drop) if port in behind else port for port in self._ports)
        for port in behind:
            port.give_back(port.request)

    # The connection.

    def pause_writing(self) -> None:
        """The server does not read fast enough."""
        self._meet(Obstacle.CLOGGED)

    def resume_writing(self) -> None:
        """The server has caught up."""
        self._overcome(Obstacle.CLOGGED)

    def abort(self) -> None:
        """Close at once."""
        if self.state not in (State.ENDING, State.LOST):
            self.state = State.ENDING
            self._transport.abort()
            self._changed()

    def dropped(self) -> None:
        """Act as on `connection_lost`: on a cancelled connect, the loop closes the transport without calling it."""
        if self._membership.admitted:
            self.abort()
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the server's close. Unanswered requests that can run twice are given back, to be resent; others get no
        reply."""
        if self.state is State.LOST:
            return
        self.state = State.LOST
        if not self._membership.admitted:
            return
        self._membership.end(self, self._transport)
        ports, self._ports = self._ports, deque()
        for place, port in enumerate(ports):
            if self.may_resend and port.request and (place or not self._long.come):
                port.give_back(port.request)
            else:
                port.lose()
        self._answered()
        self._changed()


MUCH: Final = 32 * 1024
"""Bytes of replies after which clients are served before more is read."""


class _Signs(Sender):
    """Sends PING over a lane in place of a sign."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def ask(self) -> Passed | None:
        lane = self._lane
        return lane.ping() if lane.state is State.OPEN else lambda: True

    def heard(self) -> int | None:
        return self._lane.load.replied
