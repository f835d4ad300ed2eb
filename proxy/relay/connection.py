"""The asyncio shell of a session: one client transport, one upstream transport, and back-pressure both ways."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Protocol, cast

import structlog

from proxy.session.question import Question
from proxy.session.session import RequestTooLargeError, Session
from proxy.wire.reply import ReplySubstitution

log = structlog.get_logger("proxy.relay")

FAREWELL_SECONDS = 1.0
"""How long a client that is turned away has to read why before its connection is reset."""

PATIENCE_SECONDS = 5.0
"""How long a client that is turned away waits for the replies to what it has sent before."""

SALVAGED = 64 * 1024
"""Bytes that are still read from a connection that was reset."""

LINGER_SECONDS = 30.0
"""How long a connection whose other side has gone may take to deliver what was left for it."""


class Surroundings(Protocol):
    """What a connection needs of the server that it belongs to."""

    def new_session(self) -> Session:
        """Return a session for a new client."""

    def now(self) -> float:
        """Return the server's clock, in Unix ms."""

    async def connect_upstream(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection to the upstream server. Raises OSError or TimeoutError, bounded in time."""

    def upstream_error(self, error: Exception) -> bytes:
        """Return the error line for a client when the upstream server cannot be reached."""

    async def answer(self, question: Question) -> None:
        """Do what a session asks for. Raises ConnectionError or TimeoutError, bounded in time."""

    def opened(self, connection: ClientConnection) -> None:
        """Note a new connection."""

    def closed(self, connection: ClientConnection) -> None:
        """Note that a connection has ended."""


class ClientConnection(asyncio.Protocol):
    """The client's side."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._session = surroundings.new_session()
        self._transport: asyncio.Transport
        self._upstream: UpstreamConnection | None = None
        self._send: Callable[[bytes], None] | None = None  # to upstream, as long as requests are taken
        self._task: asyncio.Task[None] | None = None
        self._early = b""  # came before upstream was there
        self._held = True  # until upstream is there, and while a question is open
        self._clogged = False  # upstream takes no more at present
        self._ended = False  # the client has sent its last byte
        self._turned_away = False
        self._parted = False  # and been told all that there is to tell
        self._last_words = b""  # for a client that is turned away, when its requests have been answered
        self._gone = False
        self._finishing = False  # when the open question has been answered, no more requests are to be taken

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to connect upstream."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop derives its own from none
        self._surroundings.opened(self)
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self._surroundings.connect_upstream(self._new_upstream)
        except (OSError, TimeoutError) as error:
            self._turn_away(self._surroundings.upstream_error(error))
            return
        self._held = False
        early, self._early = self._early, b""
        if early:
            self._judge(early)
        self._end_if_ended()
        self._regulate()

    def _end_if_ended(self) -> None:
        """Let the client's half close reach upstream, behind all that it has sent."""
        if self._ended and self._send is not None and self._upstream is not None and not self._held:
            rest = self._session.rest()
            if rest:
                self._send(rest)
            self._upstream.end()

    def _new_upstream(self) -> UpstreamConnection:
        return UpstreamConnection(self, self._transport.write)

    def attach(self, upstream: UpstreamConnection) -> bool:
        """Take the upstream connection, which is there now; False when the client has gone meanwhile."""
        if self._gone:
            return False
        self._upstream = upstream
        self._send = send = upstream.write
        session, is_plain, judge = self._session, self._session.is_plain, self._judge

        def receive(data: bytes) -> None:
            if session.ordinary and is_plain(data):
                send(data)
            else:
                judge(data)

        self._receive_by(receive)
        return True

    def _receive_by(self, receiver: Callable[[bytes], None]) -> None:
        # On the instance, and looked up by the loop when the protocol is set: a few per cent of what a request costs.
        self.data_received = receiver  # type: ignore[method-assign,assignment]
        self._transport.set_protocol(self)

    def _take_no_more(self) -> None:
        self._send = None
        self._receive_by(self._judge)

    def data_received(self, data: bytes) -> None:
        """Take what comes before upstream is there."""
        self._judge(data)

    def _judge(self, data: bytes) -> None:
        """Pass requests on that may need more than that."""
        session = self._session
        if self._turned_away:
            return  # nothing is asked of the server any more, and the client has been told why
        if self._send is None:
            # The loop reads once before it can be told to pause.
            self._early += data
            self._regulate()
            return
        try:
            out = session.receive(data, self._surroundings.now())
        except RequestTooLargeError:
            self._refuse_too_large()
            return
        if out:
            self._send_out(out)
        if session.question is not None and not self._held:
            self._hold()

    def _send_out(self, out: bytes) -> None:
        assert self._send is not None
        if self._session.replies.outstanding and self._upstream is not None:
            self._upstream.substitute(self._session.replies, self._settled)
        self._send(out)

    def _settled(self) -> None:
        """All replies that were to be put in place have been."""
        if self._last_words:
            self._say_farewell(b"")
        elif self._turned_away:
            self._transport.close()

    def _lose_patience(self) -> None:
        """The replies that a client still waits for do not come: tell it why it is turned away all the same."""
        if self._last_words and not self._gone:
            self._say_farewell(self._last_words)

    def _hold(self) -> None:
        self._held = True
        self._regulate()
        self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        session = self._session
        while (question := session.question) is not None:
            try:
                await self._surroundings.answer(question)
            except (OSError, TimeoutError) as error:
                # To go on would be to let the client see what has expired.
                log.warning("request not sent on: what is due could not be removed", error=str(error))
                self._turn_away(self._surroundings.upstream_error(error))
                return
            try:
                out = session.resume(self._surroundings.now())
            except RequestTooLargeError:
                self._refuse_too_large()
                return
            if out:
                self._send_out(out)
        self._held = False
        self._end_if_ended()
        self._regulate()
        if self._finishing:
            self.finish()

    def _refuse_too_large(self) -> None:
        log.warning("client closed: its request is larger than the limit", bytes=self._session.held)
        self._turn_away(b"-ERR request is larger than the proxy's limit (request_limit)\r\n")

    def _regulate(self) -> None:
        if self._gone:
            return
        stop = (self._held or self._clogged) and not self._turned_away
        if stop == self._transport.is_reading():
            if stop:
                self._transport.pause_reading()
            elif not self._ended:
                self._transport.resume_reading()

    def set_clogged(self, clogged: bool) -> None:
        """Note whether upstream takes no more at present."""
        self._clogged = clogged
        self._regulate()

    def pause_writing(self) -> None:
        """The client does not read fast enough: let upstream wait."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._upstream is not None:
            self._upstream.resume()

    def eof_received(self) -> bool:
        """Let the client's half close reach upstream behind its last request; replies may still come."""
        self._ended = True
        self._end_if_ended()
        return not self._parted

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: what it sent before still reaches upstream, as it would without a proxy."""
        self._gone = True
        self._surroundings.closed(self)
        if self._upstream is not None:
            self._upstream.leave()

    def upstream_lost(self) -> None:
        """The server has closed: so does the client's connection, after what is left for it."""
        if not self._gone and not self._transport.is_closing():
            self._transport.write(self._last_words)
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def _turn_away(self, line: bytes) -> None:
        """Tell the client why, behind the replies to what it has sent before, and close."""
        if self._gone:
            return
        self._turned_away = True
        sign = self._session.drain(line) if self._upstream is not None and self._send is not None else None
        self._take_no_more()
        if sign is None or self._upstream is None or self._upstream.lost:
            self._say_farewell(line)
            return
        self._last_words = line
        self._upstream.substitute(self._session.replies, self._settled)
        self._upstream.write(sign)
        self._regulate()
        asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._lose_patience)

    def _say_farewell(self, line: bytes) -> None:
        """Close so that the client can read what was said: an unread request would reset the connection."""
        self._last_words = b""
        self._parted = True
        if self._upstream is not None:
            self._upstream.silence()
        self._transport.write(line)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._regulate()
        asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._transport.close)

    def finish(self) -> None:
        """Take no more requests; close when all that were sent have been answered."""
        if self._turned_away or self._gone or self._ended:
            return  # no more requests come anyway, and upstream closes after the last reply
        if self._session.question is not None:
            self._finishing = True
            return
        sign = self._session.drain()
        if sign is None or self._send is None or self._upstream is None or self._upstream.lost:
            self.abandon()
            return
        self._turned_away = True
        self._take_no_more()
        self._transport.pause_reading()
        self._upstream.substitute(self._session.replies, self._settled)
        self._upstream.write(sign)

    def abandon(self) -> None:
        """Close without waiting for replies."""
        if self._task is not None:
            self._task.cancel()
        if self._upstream is not None:
            self._upstream.abort()
        if not self._gone:
            self._transport.abort()


class UpstreamConnection(asyncio.Protocol):
    """The server's side.

    Args:
        client: the client's side.
        deliver: takes replies for the client; the loop calls it directly, as long as none is to be put in place.

    Attributes:
        lost: whether the connection has ended.
    """

    def __init__(self, client: ClientConnection, deliver: Callable[[bytes], None]) -> None:
        self._client = client
        self._deliver = deliver
        self._transport: asyncio.Transport
        self._ended = False
        self.lost = False
        self.write: Callable[[bytes], None]
        # Set on the instance: one frame of Python less for every chunk of replies.
        self.data_received = deliver  # type: ignore[method-assign,assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Attach to the client, if it is still there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop derives its own from none
        self.write = self._transport.write
        if not self._client.attach(self):
            self._transport.abort()

    def substitute(self, replies: ReplySubstitution, settled: Callable[[], None]) -> None:
        """Pass replies through a substitution until it has nothing outstanding; then call `settled`."""

        def receive(data: bytes) -> None:
            data = replies.receive(data)
            if data:
                self._deliver(data)
            if not replies.outstanding:
                self._receive_by(self._deliver)
                settled()

        if self.data_received == self._deliver:
            self._receive_by(receive)

    def silence(self) -> None:
        """Drop what comes from now on: the client has been told its last."""
        if not self.lost and not self._transport.is_closing():
            self._receive_by(lambda _: None)

    def _receive_by(self, receiver: Callable[[bytes], None]) -> None:
        self.data_received = receiver  # type: ignore[method-assign,assignment]
        # The loop looks the method up when the protocol is set.
        self._transport.set_protocol(self)

    def pause(self) -> None:
        """Read no replies for now."""
        if not self.lost:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read replies again."""
        if not self.lost and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The server does not read fast enough: let the client wait."""
        self._client.set_clogged(True)

    def resume_writing(self) -> None:
        """The server has caught up."""
        self._client.set_clogged(False)

    def end(self) -> None:
        """Say that no more requests will come."""
        self._ended = True
        if self.lost or self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self.leave()

    def leave(self) -> None:
        """Close after what was sent has gone out."""
        if self.lost:
            return
        self._transport.close()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if not self.lost:
            self._transport.abort()

    def _salvage(self) -> None:
        """Deliver what the server said before it closed and a request that it had not read reset the connection.

        The loop gives up at the failed write; the reason (too many clients, a protocol error) is still to be read.
        """
        connection = self._transport.get_extra_info("socket")
        try:
            with socket.socket(fileno=os.dup(connection.fileno())) as rest:
                rest.setblocking(False)
                data = rest.recv(SALVAGED)
        except OSError:
            return
        if data:
            self.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed."""
        self.lost = True
        if exc is not None:
            self._salvage()
        self._client.upstream_lost()
