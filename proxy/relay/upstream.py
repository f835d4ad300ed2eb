"""The server's side of a relayed connection: its transport, and the processing of replies.

Its tests: tests/test_states.py.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final, Protocol, cast

import structlog

from proxy.loop import Droppable
from proxy.metrics.traffic import IS_LINUX, Traffic, counts_of
from proxy.relay.fence import Fence, Membership
from proxy.relay.hangup import has_failed, left_unread, socket_of, untaken
from proxy.relay.inspection import near_end_of
from proxy.tls import Secured
from proxy.wire.first_line import StrayReplyError
from proxy.wire.reply import LoginEvidence, ReplySubstitution, UnclearRepliesError

log = structlog.get_logger("proxy.relay")

LINGER_SECONDS: Final = 30.0
"""How long a connection whose client has gone may take to deliver its remaining bytes to the server."""


class ReadPause(Enum):
    """Why replies are not read from the server."""

    FULL = "the client must read earlier replies first"
    MIDWAY = "received replies wait until one on a shared connection is complete"


class ReadPauses:
    """The reasons not to read from a server. While there is one, a timer checks whether waiting still makes sense."""

    def __init__(self) -> None:
        self._reasons: set[ReadPause] = set()
        self._count = 0  # number of reasons added so far
        self._watch: asyncio.TimerHandle | None = None

    def add(self, why: ReadPause, transport: asyncio.Transport, abort: Callable[[], None]) -> None:
        """Add a reason. `abort` is called once the connection has failed and the client has read nothing for a long
        time: while the proxy does not read from the server, nothing else reveals the failure."""
        self._reasons.add(why)
        self._count += 1
        if self._watch is None:
            self._look_after(transport, abort)

    def has(self, why: ReadPause) -> bool:
        """Return whether this is one of the reasons."""
        return why in self._reasons

    def remove(self, why: ReadPause) -> bool:
        """Remove a reason; return whether none is left."""
        self._reasons.discard(why)
        return not self._reasons

    def end(self) -> None:
        """Stop watching the connection."""
        if self._watch is not None:
            self._watch.cancel()

    def _look_after(self, transport: asyncio.Transport, abort: Callable[[], None]) -> None:
        count = self._count

        def look() -> None:
            self._watch = None
            if transport.is_closing() or transport.is_reading():
                return
            if count == self._count and has_failed(transport):
                abort()
            else:
                self._look_after(transport, abort)

        self._watch = asyncio.get_running_loop().call_later(LINGER_SECONDS, look)


class Downstream(Protocol):
    """The part of the client's side that a connection to the server uses."""

    @property
    def who(self) -> dict[str, str]:
        """Fields that identify the client in log lines."""

    def attach(self, upstream: UpstreamConnection) -> bool:
        """Attach the connected upstream side; return False if the client has gone meanwhile."""

    def upstream_lost(self, refusal: Exception | None) -> None:
        """Handle the server's close.

        Args:
            refusal: why the server refused the connection, if it did.
        """


class Audience(Protocol):
    """Gets events of a connection to the server."""

    def set_clogged(self, clogged: bool) -> None:
        """Record whether writing to the server is paused because it does not read fast enough."""

    def logged_in(self) -> None:
        """Note that the server's replies show that the client is logged in."""

    def replies_passed(self) -> None:
        """Note that replies, some of them replaced, were passed on to the client."""


class UpstreamConnection(Droppable):
    """A connection to the server that belongs to one client.

    Args:
        client: the client's side.
        deliver: takes replies for the client; called directly by the loop while replies need no processing.
        traffic: counts bytes.
        fence: keeps the connections to one server together.

    Attributes:
        audience: gets events, from when it is attached until the client is sent the last bytes.
        lost: whether the connection has ended.
        ended_beneath: whether `end_beneath` has notified the server that no more requests will come.
        write: sends requests.
    """

    def __init__(self, client: Downstream, deliver: Callable[[bytes], None], traffic: Traffic, fence: Fence) -> None:
        self._membership = Membership(fence, traffic)
        self._client = client
        self.audience: Audience | None = None
        self._deliver = deliver
        self._transport: asyncio.Transport
        self._replies: ReplySubstitution | None = None
        self._evidence: LoginEvidence | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._read_pauses = ReadPauses()
        self._heard = 0  # number of chunks processed; over TLS, the first is always counted
        self._passed = 0  # number of those with something for the client
        self.lost = self.ended_beneath = False
        self.write: Callable[[bytes], None]
        # Set on the instance: saves a Python call for every chunk of replies.
        self.data_received = deliver  # type: ignore[method-assign,assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Attach to the client, if it is still connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's
        self.write = self._transport.write
        if not self._membership.begin(self, self._transport):
            return
        if transport.get_extra_info("sslcontext") is not None:
            self._receive_by(self._look)
        if not self._client.attach(self):
            self._transport.abort()

    @property
    def closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.lost or self._transport.is_closing()

    @property
    def may_take(self) -> bool:
        """Whether the server could still give the client data through this connection.

        False while the client does not read earlier replies: then the end of the connection is not seen either.
        """
        return not (self.lost or self._read_pauses.has(ReadPause.FULL))

    @property
    def unsent(self) -> int:
        """Bytes that the transport still has to send."""
        return 0 if self.lost else self._transport.get_write_buffer_size()

    @property
    def untaken(self) -> int:
        """Bytes that the transport and the system still have to send."""
        return 0 if self.closing else untaken(self._transport)

    @property
    def near_end(self) -> bytes | None:
        """The proxy's address on the connection, as servers write it; None for a Unix socket."""
        return near_end_of(self._transport)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of bytes received and sent. Zero for a Unix socket, where `untaken` is exact."""
        connection = self._transport.get_extra_info("socket")
        if self.closing or connection is None or not IS_LINUX or connection.family == socket.AF_UNIX:
            return 0, 0
        return counts_of(connection) or (0, 0)

    @property
    def is_reading(self) -> bool:
        """Whether replies are being read."""
        return not self.closing and self._transport.is_reading()

    @property
    def ends_by_halves(self) -> bool:
        """Whether replies still arrive after `end`. TLS has no half close."""
        return self._transport.can_write_eof()

    def substitute(self, replies: ReplySubstitution) -> None:
        """Pass replies through a substitution until nothing is outstanding in it."""
        self._replies = replies
        self._receive_by(self._look)

    def watch_for_login(self, replies: ReplySubstitution, since: int) -> None:
        """Watch for the first reply that only a logged-in client gets, unless already watching.

        `since`: the number of the sign in `replies` before which no reply proves anything; see `LoginEvidence`.
        """
        if self._evidence is None or self._evidence.since != since:
            self._evidence = LoginEvidence(replies, since)
            self._receive_by(self._look)

    def heard(self) -> int:
        """Return a number that changes when the server sends something; start counting if necessary."""
        self._receive_by(self._look)
        return self._heard

    def passed(self) -> int:
        """Return a number that changes when the server sends something for the client; start counting if necessary."""
        self._receive_by(self._look)
        return self._passed

    def _look(self, data: bytes) -> None:
        self._heard += 1
        if self._evidence is not None and self._evidence.receive(data):
            self._evidence = None
            if self.audience is not None:
                self.audience.logged_in()
        replies = self._replies
        if replies is not None:
            try:
                data = replies.receive(data)
            except UnclearRepliesError:
                log.warning(
                    "client dropped: cannot tell which error answers the proxy's own request", **self._client.who
                )
                self.abort()
                return
            except StrayReplyError as error:
                log.error("client dropped: stray reply", reply=repr(error.args[0]), **self._client.who)
                self.abort()
                return
        if data:
            self._passed += 1
            self._deliver(data)
        if replies is not None:
            if not replies.active:
                self._replies = None
            if self.audience is not None:
                self.audience.replies_passed()
        # After a chunk without bytes for the client, keep looking: `passed` must count the next one that has some.
        if data and self._replies is None and self._evidence is None and self.data_received == self._look:
            self._receive_by(self._deliver)

    def deliver_by(self, deliver: Callable[[bytes], None]) -> None:
        """Set the function that takes replies."""
        direct = self.data_received == self._deliver
        self._deliver = deliver
        if direct:
            self._receive_by(deliver)

    def drop_replies(self) -> None:
        """Drop everything for the client from now on: it has gone, or was sent the last bytes."""
        direct = self.data_received == self._deliver
        self._deliver = _drop
        if direct:
            self._receive_by(_drop)
        for why in ReadPause:
            self.resume(why)  # a client that has gone must not stop the reading

    def _receive_by(self, receiver: Callable[[bytes], None]) -> None:
        if self.closing or self.data_received == receiver:
            return
        self.data_received = receiver  # type: ignore[method-assign,assignment]
        # Makes the loop look up `data_received` again.
        self._transport.set_protocol(self)

    def pause(self, why: ReadPause) -> None:
        """Pause reading replies."""
        if self.closing:
            return
        self._read_pauses.add(why, self._transport, self.abort)
        self._transport.pause_reading()

    def resume(self, why: ReadPause) -> None:
        """Resume reading replies, if there is no other reason to pause."""
        if self._read_pauses.remove(why) and not self.closing:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The server does not read fast enough: make the client wait."""
        if self.audience is not None:
            self.audience.set_clogged(True)

    def resume_writing(self) -> None:
        """The server has caught up."""
        if self.audience is not None:
            self.audience.set_clogged(False)

    def end(self, rest: bytes = b"") -> None:
        """Send a half close, and go on reading replies. Call this only if `ends_by_halves`.

        `rest`: the beginning of a request to send first.
        """
        if self.closing:
            return
        if rest and (rest := self._send_at_once(rest)):
            self.write(rest)
        if self._transport.get_write_buffer_size():
            self._transport.write_eof()
        else:
            # The loop would shut the socket later, after other writes: until then the server could give this client
            # data meant for others.
            self._shut()

    def end_beneath(self) -> bool:
        """Half-close the TCP connection below TLS, which has no half close.

        A middlebox may take this for the end of both sides, and drop replies. So use it only for a client that waits
        for others' data: without a half close, the server would hand such data to a client that has gone.

        Returns:
            Whether the server was notified: false if something is still to be sent.
        """
        if self.ends_by_halves or self.closing or self._transport.get_write_buffer_size():
            return False
        if isinstance(self._transport, Secured):
            self._transport.expect_alert()
        self._shut()
        self.ended_beneath = True
        return True

    def _send_at_once(self, data: bytes) -> bytes:
        """Send what the system takes at once, if nothing is waiting before it; return the rest."""
        waiting = self._transport.get_write_buffer_size()
        if waiting:
            return data
        with suppress(OSError), socket_of(self._transport) as connection:
            return data[connection.send(data, socket.MSG_DONTWAIT) :]
        return data

    def _shut(self) -> None:
        with suppress(OSError), socket_of(self._transport) as connection:
            connection.shutdown(socket.SHUT_WR)

    def leave(self) -> None:
        """Close when the server has read everything that was sent; drop its replies.

        Closing at once, with a reply unread or still to come, would reset the connection, and the server would stop
        reading.
        """
        if self.lost:
            return
        self._membership.look(self._transport)
        self.drop_replies()
        self._receive_by(_drop)
        self._replies = self._evidence = None
        if self.ends_by_halves:
            self.end()
        elif not self.ended_beneath:  # after `end_beneath` TLS cannot write its close alert
            self._transport.close()
        if self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if not self.lost:
            self._membership.look(self._transport)
            self._transport.abort()

    def _salvage(self) -> None:
        """Deliver the server's last reply after the server closed and an unread request reset the connection.

        The loop gives up at the failed write, but the reply (too many clients, a protocol error) can still be read.
        """
        if said := b"".join(left_unread(self._transport)):
            self.data_received(said)

    def eof_received(self) -> None:
        """Handle the end of the server's replies."""
        self._membership.look(self._transport)

    def dropped(self) -> None:
        """Act as on `connection_lost`: on a cancelled connect, the loop closes the transport without calling it."""
        if self._membership.admitted:
            self.abort()
            self._lose(None, None if self._membership.closed else TimeoutError())

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the server's close."""
        # With TLS 1.3 a server refuses a certificate only after this side has finished the handshake.
        refused = self._heard == 0 and not self.ended_beneath and isinstance(exc, ssl.SSLError)
        self._lose(exc, exc if refused else None)

    def _lose(self, exc: Exception | None, refusal: Exception | None) -> None:
        if not self._membership.admitted or self.lost:
            return  # the client is being connected to another server, or has got an error
        self._membership.end(self, self._transport)
        self._read_pauses.end()
        if self._linger is not None:
            self._linger.cancel()
        try:
            # Any other error is a defect of the proxy in processing a reply: reading on would repeat it.
            if isinstance(exc, OSError) and self._transport.get_extra_info("sslcontext") is None:
                self._salvage()
            if self._replies is not None and (rest := self._replies.end()):
                self._deliver(rest)
        finally:
            self.lost = True
            self.data_received = _drop  # type: ignore[method-assign,assignment] # `_look` would be a reference cycle
            self._client.upstream_lost(refusal)


def _drop(_: bytes) -> None:
    """Drop replies."""
