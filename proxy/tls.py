"""TLS connections that are held up, and seen to end, at the transport beneath.

Its tests: tests/test_tls.py.

uvloop's TLS transport reads on while its protocol wants nothing: when the other side then closes, what was read and not
delivered is lost, without a word. And once the other side has ended, what is written is dropped, with a line in the log
for each write, while the connection stays open for as long as the other side likes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

LINGER_SECONDS: Final = 30.0
"""How long a connection whose other side has ended may take to deliver what was written before."""

_ROOM: Final = 16 * 1024
"""Bytes that are read at once during a handshake."""

PIECE: Final = 64 * 1024
"""Bytes that are encrypted, or decrypted, at once."""

_ALERT: Final = 128
"""Bytes of a record that holds an alert, at most, and of one behind it."""


class Beneath(asyncio.BufferedProtocol):
    """Stands between a connection and TLS from the first moment to the last, and tells both of its end, whenever it is.

    Until the handshake is over it hands on what comes. That is most of the work that a stranger can make: where many
    begin at once each waits for its turn.

    Args:
        join: has something done in its turn; at once where not given.
    """

    def __init__(self, join: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._join = join
        self._room = bytearray()
        self._came = b""
        self._tls: asyncio.BufferedProtocol | None = None
        self._begun = False  # TLS has its transport
        self._above: asyncio.Transport | None = None  # when the handshake is over
        self._input_ended = False
        self._lost = False
        self._is_full = False  # the transport takes no more at present
        self._linger: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop derives its own from none

    def adopt(self, tls: asyncio.BufferedProtocol) -> None:
        """Tell TLS of the connection's end from now on, and hand on to it what comes when it has its transport."""
        self._tls = tls
        self._transport.set_protocol(self)
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begun = True
        if self._came:
            self._offer()

    def get_buffer(self, sizehint: int) -> Any:
        """Return room for what comes."""
        self._room = bytearray(_ROOM)
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Read no more until this has been handed on."""
        self._came += self._room[:nbytes]
        self._transport.pause_reading()
        if self._begun:
            self._offer()

    def _offer(self) -> None:
        if self._join is None:
            self._feed()
        else:
            self._join(self._feed)

    def _feed(self) -> None:
        data, self._came = self._came, b""
        while data and self._tls is not None and not self._transport.is_closing():
            room = memoryview(self._tls.get_buffer(len(data)))
            size = min(len(data), len(room))
            room[:size] = data[:size]
            self._tls.buffer_updated(size)
            data = data[size:]
        if not (self._input_ended or self._transport.is_closing()):
            self._transport.resume_reading()

    def end(self, above: asyncio.Transport) -> None:
        """Leave what comes to TLS: the handshake is over."""
        assert self._tls is not None
        self._join = None
        self._feed()
        self._room = bytearray()
        self._above = above
        # As attributes: the loop calls them directly, and this costs nothing then. What is read at once goes through a
        # buffer of OpenSSL's, which keeps the size that it had.
        room = memoryview(self._tls.get_buffer(PIECE))[:PIECE]
        self.get_buffer = lambda sizehint: room  # type: ignore[method-assign] # noqa: ARG005 - the loop names it
        self.buffer_updated = self._tls.buffer_updated  # type: ignore[method-assign]
        self._transport.set_protocol(self)

    def eof_received(self) -> bool | None:
        """The other side has ended."""
        if self._tls is None:
            return False
        if self._above is not None:
            self._end_input()
            return None
        self._input_ended = True
        self._feed()
        # Behind what came with the last part of the handshake, which TLS would drop.
        asyncio.get_running_loop().call_soon(self._end_input)
        return True

    def _end_input(self) -> None:
        """Tell of the end, first who is above TLS: TLS tells nothing before all that was written has been taken."""
        if self._lost:
            return
        self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)
        if self._above is not None and not self._above.is_closing():
            cast(asyncio.Protocol, self._above.get_protocol()).eof_received()
        assert self._tls is not None
        self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is lost."""
        self._lost = True
        try:
            if self._linger is not None:
                self._linger.cancel()
            elif self._above is not None and not self._above.is_closing():
                # TLS tells it one turn of the loop later: until then the server would give it what others bring.
                cast(asyncio.Protocol, self._above.get_protocol()).eof_received()
        finally:
            if self._tls is not None:
                self._tls.connection_lost(exc)

    def expect_alert(self) -> None:
        """Let nothing be lost of what comes with an alert: OpenSSL fails at it before the loop has handed that on.

        The end of what comes is decrypted byte by byte, so that each record is handed on before the next one is seen.
        """
        self.buffer_updated = self._take_apart  # type: ignore[method-assign]
        self._transport.set_protocol(self)

    def _take_apart(self, nbytes: int) -> None:
        assert self._tls is not None
        data = bytes(self.get_buffer(nbytes)[:nbytes])
        front = max(0, nbytes - _ALERT)
        for piece in filter(None, (data[:front], *(data[place : place + 1] for place in range(front, nbytes)))):
            if self._lost or self._transport.is_closing():
                return
            memoryview(self._tls.get_buffer(len(piece)))[: len(piece)] = piece
            self._tls.buffer_updated(len(piece))

    def pause_writing(self) -> None:
        """The other side takes no more at present."""
        self._is_full = True
        if self._tls is not None:
            self._tls.pause_writing()
        self._tell_writer()

    def resume_writing(self) -> None:
        """It takes more."""
        self._is_full = False
        if self._tls is not None:
            self._tls.resume_writing()  # with what that sends it may be full again
        self._tell_writer()

    def pump(self) -> None:
        """Have the transport keep what TLS keeps, as it takes no more at present."""
        assert self._tls is not None
        self._tls.resume_writing()
        self._tls.pause_writing()
        self._tell_writer()

    def _tell_writer(self) -> None:
        """Tell who is above TLS whether to write: TLS knows of what it keeps itself, and that goes beneath at once."""
        if self._above is not None and not self._lost:
            protocol = cast(asyncio.Protocol, self._above.get_protocol())
            (protocol.pause_writing if self._is_full else protocol.resume_writing)()


class _Early(asyncio.Protocol):
    """Keeps what comes behind a handshake until who it is for has been told of the connection; then hands it on."""

    def __init__(self) -> None:
        self._protocol: asyncio.Protocol | None = None
        self._happened: list[Callable[[asyncio.Protocol], object]] = []

    def data_received(self, data: bytes) -> None:
        self._note(lambda protocol: protocol.data_received(data))

    def eof_received(self) -> None:
        self._note(lambda protocol: protocol.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        # The loop may call it late, as it has been scheduled before.
        self._note(lambda protocol: protocol.connection_lost(exc))

    def _note(self, happen: Callable[[asyncio.Protocol], object]) -> None:
        if self._protocol is None:
            self._happened.append(happen)
        else:
            happen(self._protocol)

    def tell(self, protocol: asyncio.Protocol) -> None:
        """Tell a protocol what has happened, and what will."""
        self._protocol = protocol
        happened, self._happened = self._happened, []
        for happen in happened:
            happen(protocol)


_LOST: Final = "the connection was lost"


class Secured(asyncio.Transport):
    """A TLS transport, as its protocol sees it.

    Args:
        above: the loop's TLS transport.
        beneath: the transport that it uses.
    """

    def __init__(self, above: asyncio.Transport, beneath: asyncio.Transport) -> None:
        super().__init__()
        self._above, self._beneath = above, beneath
        self._write = above.write
        self._is_ending = beneath.is_closing

    def write(self, data: Any) -> None:
        """Send bytes, unless the other side has ended."""
        if not self._is_ending():
            if len(data) > PIECE:
                self._write_long(data)
            else:
                self._write(data)

    def _write_long(self, data: Any) -> None:
        """Send many bytes, piece by piece: OpenSSL's buffer, which each passes through, keeps the size that it had."""
        between = cast(Beneath, self._beneath.get_protocol())
        with memoryview(data) as whole:
            for begin in range(0, len(whole), PIECE):
                self._write(bytes(whole[begin : begin + PIECE]))
                if self._above.get_write_buffer_size():  # kept, as the transport beneath takes no more at present
                    between.pump()

    def is_closing(self) -> bool:
        """Return whether nothing can be sent any more."""
        return self._above.is_closing() or self._is_ending()

    def is_reading(self) -> bool:
        """Return whether bytes are taken from the other side."""
        return not self._is_ending() and self._beneath.is_reading()

    def pause_reading(self) -> None:
        """Take no bytes from the other side, nor its end."""
        if not self._is_ending():
            self._beneath.pause_reading()

    def resume_reading(self) -> None:
        """Take them again."""
        if not self._is_ending():
            self._beneath.resume_reading()

    def can_write_eof(self) -> bool:
        """Return False: TLS knows no half close."""
        return False

    def expect_alert(self) -> None:
        """Expect one, as the connection beneath has been ended by halves: servers say so."""
        cast(Beneath, self._beneath.get_protocol()).expect_alert()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the transport tells."""
        return self._above.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set who takes what comes."""
        self._above.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return who takes what comes."""
        return self._above.get_protocol()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are still to be sent."""
        return self._above.get_write_buffer_size() + self._beneath.get_write_buffer_size()

    def close(self) -> None:
        """Close when all has been sent."""
        self._above.close()

    def abort(self) -> None:
        """Close at once."""
        self._above.abort()


async def secure(
    protocol: asyncio.Protocol,
    beneath: asyncio.Transport,
    context: ssl.SSLContext,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
    seconds: float | None = None,
) -> None:
    """Do the TLS handshake on a connection, and give it to a protocol.

    Args:
        protocol: gets `connection_made` when the handshake is over; if it fails, nothing.
        beneath: the connection, with a `Beneath` as its protocol.
        context: the certificates.
        server_side: whether this is the server's side.
        server_hostname: the name that the server's certificate has to be for.
        seconds: how long it may take, whatever the loop does; the loop's own limit if not given.

    Raises:
        OSError: it failed. The connection is closed.
    """
    loop, between, early = asyncio.get_running_loop(), cast(Beneath, beneath.get_protocol()), _Early()
    over = False

    async def shake_hands() -> None:
        nonlocal over
        if beneath.is_closing():
            raise ConnectionResetError(_LOST)  # of that end TLS would not be told any more
        above = await loop.start_tls(
            beneath,
            early,
            context,
            server_side=server_side,
            server_hostname=server_hostname,
            ssl_handshake_timeout=seconds,
        )
        # A connection that ends without an error makes the loop say that all went well.
        if above is None or above.get_extra_info("ssl_object") is None:
            raise ConnectionResetError(_LOST)
        between.end(above)
        above.set_protocol(protocol)
        over = True
        protocol.connection_made(Secured(above, beneath))
        early.tell(protocol)

    handshake = loop.create_task(shake_hands())
    handshake.add_done_callback(lambda task: task.cancelled() or task.exception())  # told below, or given up
    try:
        # The loop keeps the order: the handshake begins, and has taken the connection when this goes on; TLS gets its
        # transport, then what has come.
        await asyncio.sleep(0)
        if not beneath.is_closing():
            between.adopt(cast(asyncio.BufferedProtocol, beneath.get_protocol()))
        if not (await asyncio.wait((handshake,), timeout=seconds))[0]:
            raise TimeoutError(f"the TLS handshake took longer than {seconds} s")
        handshake.result()
    except BaseException as error:
        if over and isinstance(error, asyncio.CancelledError):
            return  # it is the handshake that was to end
        handshake.cancel()
        beneath.abort()
        early.tell(asyncio.Protocol())  # nobody
        raise
    finally:
        del handshake  # a ring of frames and errors: it would keep all of it, 50 KB, until the collector comes
