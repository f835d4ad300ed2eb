"""A shared connection to the server: the requests of many clients go over it, and each reply to whom it belongs.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import islice
from typing import Final, cast

import structlog

from proxy.loop import Droppable
from proxy.metrics.traffic import Traffic
from proxy.relay.fence import Fence
from proxy.relay.port import LARGE, Port, Room, drop
from proxy.session.identity import WHO, Identity, who
from proxy.session.pipeline import Passed, Pipeline, Sender
from proxy.wire.first_line import StrayReplyError
from proxy.wire.replies import MOST_PARTS, Replies, short_arrays, short_replies
from proxy.wire.request import encode

log = structlog.get_logger("proxy.relay")

NAME: Final = b"expiremember-proxy:shared"
"""What CLIENT LIST shows."""

_PING: Final = b"*1\r\n$4\r\nPING\r\n"
_STAR: Final = 0x2A


class State(Enum):
    """Where a lane stands."""

    OPENING = "it logs in, and the server says whose it is"
    OPEN = "requests can go"
    ENDING = "the proxy closes it"
    LOST = "it has ended"


class Lane(Droppable):
    """A connection that belongs to no client.

    Args:
        identity: whose requests go over it.
        login: what AUTH is given; nothing where there is no need to log in.
        traffic: counts bytes.
        fence: keeps the connections to one server together.
        room: bounds what waits for clients.
        changed: is called when it can take requests, or can no more.
        ran: is called when what was sent while it `is_long` has run, or never will.

    Attributes:
        is_long: whether so much is under way that others may have to wait for it.
        unanswered: bytes that have been sent since nothing was under way: a busy server reads them in pieces.
        state: where it stands.
        repeats: whether its requests may be sent once more: they change nothing.
        retires: whether who gets replies of many parts is to go back to its own connection.
        refusal: why it cannot be used, for people, where the server has said that.
        pipeline: stands for what has been sent, where others wait for that to run.
        replied: how many chunks of replies have come.
        stalled: whether it seems to be held up.
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
    ) -> None:
        self._identity = identity
        self._room = room
        self._traffic = traffic
        self._fence = fence
        self._changed = changed
        self._ran = ran
        self._come = 0  # bytes of a reply that has come in part
        self._scripts: set[str] | None = set()  # of which the text has been sent; None: none can be named by digest
        self.is_long = False
        self.unanswered = 0
        self._admitted = False
        self._transport: asyncio.Transport
        self._replies = Replies()
        self._find = short_replies()
        self._find_arrays = short_arrays()
        self._ports: deque[Port] = deque()  # whose requests are unanswered, in order
        self._unheard = 0  # ports whose replies are not in the chunk that is being distributed
        self._clogged = False
        self._held_up_by: Port | None = None  # a client that reads its long reply too slowly
        self._kept_waiting = 0  # looks, since this reply began, at which others waited behind such a client
        self._rescue_comes = False
        self._opening = self._greeting(tuple(login))
        self._greeted: list[bytes] = [b""]
        self.state = State.OPENING
        self.refusal = ""
        self.repeats = False
        self.retires = True
        self.pipeline = Pipeline()
        self.pipeline.sender = _Signs(self)
        self.replied = 0
        self.stalled = False
        self.data_received = self._greet  # type: ignore[method-assign]

    def _greeting(self, login: tuple[str, ...]) -> list[bytes]:
        requests = [encode([b"AUTH", *(word.encode() for word in login)])] if login else []
        if self._identity.protocol == 3:
            requests.append(encode([b"HELLO", b"3"]))
        if self._identity.database:
            requests.append(encode([b"SELECT", b"%d" % self._identity.database]))
        return [*requests, encode([b"CLIENT", b"SETNAME", NAME]), WHO]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Log in."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop derives its own from none
        self._admitted = self._fence.admit(self)
        if not self._admitted:
            self._transport.abort()
            return
        self._traffic.opened("upstream", transport)
        self._transport.write(b"".join(self._opening))

    def _greet(self, data: bytes) -> None:
        try:
            for piece, ends in self._replies.cut(data):
                self._greeted[-1] += piece
                if ends:
                    self._greeted.append(b"")
        except StrayReplyError as error:
            self.refusal = repr(error.args[0])
            self.abort()
            return
        answers = self._greeted[:-1]
        if len(answers) < len(self._opening):
            return
        *before, _named, told = answers
        self.refusal = next(
            (answer[1:].strip().decode("utf-8", "replace") for answer in before if answer[:1] == b"-"), ""
        )
        if not self.refusal and who(told) != self._identity:
            self.refusal = "the server says that it is another user's, or in another state"
        if self.refusal:
            self.abort()
            return
        self.state = State.OPEN
        self.data_received = self._distribute  # type: ignore[method-assign]
        self._transport.set_protocol(self)  # the loop looks the method up then
        self._changed()

    @property
    def usable(self) -> bool:
        """Whether requests can go now, and are likely to be answered soon."""
        return self.state is State.OPEN and not (
            self._clogged or self.stalled or self._held_up_by is not None or self._is_within_a_long_reply
        )

    @property
    def _is_within_a_long_reply(self) -> bool:
        return self._come > LARGE or self._replies.left > LARGE

    @property
    def waits(self) -> bool:
        """Whether replies are to come."""
        return bool(self._ports)

    def send(self, ports: list[Port], data: bytes) -> None:
        """Send requests, one of each port."""
        self._ports.extend(ports)
        self._unheard += len(ports)  # where it is something that has come which sends them
        self._transport.write(data)

    def has_come(self, count: int) -> bool:
        """Return whether the next so many replies have come whole, in the chunk that is being distributed."""
        return len(self._ports) - count >= self._unheard

    def watch(self, count: int, watch: Callable[[Port], Port]) -> None:
        """Have what `watch` returns stand for each of the next so many ports."""
        ports = self._ports
        ports.extendleft([watch(ports.popleft()) for _ in range(min(count, len(ports)))][::-1])

    def has_script(self, script: str) -> bool:
        """Return whether a call may name a script by its digest; note that its text is sent, if not."""
        if self._scripts is None:
            return False
        there = script in self._scripts
        self._scripts.add(script)
        return there

    def lack_script(self, script: str, *, for_good: bool) -> None:
        """Note that the server does not have the text of a script, which is sent now; or `for_good` that digests are of
        no use here."""
        if for_good:
            self._scripts = None
        elif self._scripts is not None:
            self._scripts.add(script)

    def sign(self) -> Passed:
        """Send a request of the proxy's own behind all others; return what tells whether it has been answered."""
        port = Port(drop)
        port.busy = True
        self.send([port], _PING)
        return lambda: not port.busy

    def _distribute(self, data: bytes) -> None:
        self.replied += 1
        ports = self._ports
        if self._replies.between:
            replies = self._find(data) if data[0] != _STAR else []
            if sum(map(len, replies)) != len(data):
                replies = self._find_arrays(data) if len(data) < MUCH else []
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
                if self.stalled:
                    self.stalled = False
                    self._changed()
                return
        self._distribute_pieces(data)

    def _distribute_pieces(self, data: bytes) -> None:
        was_usable = self.usable
        self.stalled = False
        self._unheard = len(self._ports)
        try:
            for piece, ends in self._replies.cut(data):
                if not self._ports:
                    raise StrayReplyError(piece[:100])
                port = self._ports[0]
                come = self._come + len(piece)
                self._come = 0 if ends else come
                if ends:
                    self._kept_waiting = 0
                    self._ports.popleft()
                    port.busy = False
                try:
                    port.deliver(piece)
                    if ends and (come > LARGE or (self.retires and piece.count(b"\n") > MANY_LINES)):
                        port.retire()
                    if ends and port.settled is not None:
                        port.settled()
                except Exception as error:  # noqa: BLE001
                    port.broke(error)
                if not ends and come > LARGE and port.backlog() > self._room.of(port):
                    self._hold_up(port)
        except StrayReplyError as error:
            log.error("shared connection closed: stray reply", reply=repr(error.args[0]))
            self.abort()
            return
        self._answered()
        if len(data) >= MUCH and not self._replies.left:
            self._rest()
        if self.repeats and self._is_within_a_long_reply and not self._rescue_comes:
            self._rescue_comes = True
            asyncio.get_running_loop().call_later(RESCUE_SECONDS, self._rescue)
        if self.usable != was_usable:
            self._changed()

    def _answered(self) -> None:
        if not self._ports:
            self.unanswered = 0
            if self.is_long:
                self.is_long = False
                self._ran(self.pipeline)

    # A long reply, and a client that does not read it.

    def _read_on(self) -> None:
        if self.state is State.OPEN and not self._transport.is_closing():
            self._transport.resume_reading()

    def _rest(self) -> None:
        """Let clients be served before more is read: the loop would read on, many times, and to cut takes long."""

        def go_on() -> None:
            if self._held_up_by is None:
                self._read_on()

        if self.state is State.OPEN:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(go_on)

    def _rescue(self) -> None:
        """Let those behind a long reply that has still not come whole ask again over their own connections; what comes
        here for them is dropped."""
        self._rescue_comes = False
        if not self._is_within_a_long_reply or self.state is not State.OPEN:
            return
        behind = {port: None for port in islice(self._ports, 1, None) if port.request}
        self._ports = deque(Port(drop) if port in behind else port for port in self._ports)
        for port in behind:
            port.give_back(port.request)

    def _hold_up(self, port: Port) -> None:
        """Read no more until a client has read more of its reply."""
        if self._held_up_by is None:
            self._held_up_by = port
            self._transport.pause_reading()
            self._look_again(port, port.backlog(), 0)

    def _look_again(self, port: Port, backlog: int, looks: int) -> None:
        def look() -> None:
            if self.state is State.LOST:
                return
            left = port.backlog()
            if not self.repeats and len(self._ports) > 1:
                self._kept_waiting += 1
            if left <= self._room.of(port) // 2:
                self._held_up_by = None
                self._read_on()
                self._changed()
            elif left < backlog and self._kept_waiting < IMPATIENT_LOOKS:
                self._look_again(port, left, 0)
            elif self._kept_waiting < IMPATIENT_LOOKS and looks < (PATIENT_LOOKS if self.repeats else IMPATIENT_LOOKS):
                self._look_again(port, backlog, looks + 1)
            else:
                log.warning("client closed: it does not read a long reply", bytes=left)
                port.lost()
                self._look_again(port, backlog, 0)

        asyncio.get_running_loop().call_later(LOOK_SECONDS, look)

    # The connection.

    def pause_writing(self) -> None:
        """The server does not read fast enough."""
        self._clogged = True
        self._changed()

    def resume_writing(self) -> None:
        """The server has caught up."""
        self._clogged = False
        self._changed()

    def abort(self) -> None:
        """Close at once."""
        if self.state not in (State.ENDING, State.LOST):
            self.state = State.ENDING
            self._transport.abort()
            self._changed()

    def dropped(self) -> None:
        """The loop has closed the transport, made or not, without a word: the opening was given up in that moment."""
        if self._admitted:
            self.abort()
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed: requests without a reply get none, except those that may run again."""
        if self.state is State.LOST:
            return
        self.state = State.LOST
        if not self._admitted:
            return
        self._traffic.closed(self._transport)
        self._fence.dismiss(self)
        ports, self._ports = self._ports, deque()
        for place, port in enumerate(ports):
            if self.repeats and port.request and (place or not self._come):
                port.give_back(port.request)
            else:
                port.busy = False
                port.lost()
        self._answered()
        self._changed()


MANY_LINES: Final = 2 * MOST_PARTS + 1
"""Lines of a reply beyond which to cut it costs the proxy more than sharing saves it: it is not taken whole."""

MUCH: Final = 32 * 1024
"""Bytes of replies behind which others are served before more is read."""

RESCUE_SECONDS: Final = 0.1
"""How long those behind a long reply wait before they ask again elsewhere."""

LOOK_SECONDS: Final = 0.02
PATIENT_LOOKS: Final = 3000
"""How often in a row such a client may be seen not to have read anything: for 60 s, as nobody has to wait for it. (Of
one that reads slowly the system takes more only now and then.)"""

IMPATIENT_LOOKS: Final = 250
"""The same where others may wait behind it whose requests must not run twice: for 5 s. Where others do wait, also how
often in all that may be seen, whatever it reads."""


class _Signs(Sender):
    """Puts signs behind what has been sent over a lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def ask(self) -> Passed | None:
        lane = self._lane
        return lane.sign() if lane.state is State.OPEN else lambda: True

    def heard(self) -> int | None:
        return self._lane.replied
