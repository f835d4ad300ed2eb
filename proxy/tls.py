"""TLS connections with working flow control, which notice that the peer has ended its side.

Its tests: tests/test_tls.py.

uvloop's TLS transport reads on while its protocol has paused reading. If the peer then closes, data that was read but
not delivered is silently lost. After the peer has ended its side, uvloop drops each write with a log line, and the
connection stays open for as long as the peer likes. To prevent this, this code acts on the transport below TLS.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import ssl
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

LINGER_SECONDS: Final = 30.0
"""How long a connection may still take to deliver earlier writes after its peer has ended its side."""

_ROOM: Final = 16 * 1024
"""Bytes to read at once during a handshake."""

PIECE: Final = 64 * 1024
"""Bytes to encrypt or decrypt at once."""

_ALERT: Final = 128
"""How many of the last bytes of a read to decrypt one by one: enough for a record with an alert and one more record."""


_KEPT: Final = 288 * 1024
"""How many bytes a connection may free when it ends, also during its handshake: the loop's buffer of 256 KB, which may
have been in use before, and those of OpenSSL."""

_MADVISE: Final = getattr(ctypes.CDLL(None), "madvise", None)


def give_back(buffer: memoryview) -> None:
    """Return the pages of a buffer to the system until they are used; what the buffer holds is lost.

    The loop's TLS has a buffer of 256 KB for each connection, of which only `PIECE` is ever used. The allocator may
    take it from memory that was in use before, all of which then stays resident.
    """
    if _MADVISE is not None and sys.platform == "linux":
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (address + len(buffer)) // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if size > 0:
            _MADVISE(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


class Beneath(asyncio.BufferedProtocol):
    """Sits between a TCP connection and TLS for the connection's whole life. Notifies TLS and the protocol above of
    the connection's end, whenever that is.

    Until the handshake is over, received bytes are passed on in turns: handshakes are most of the work that strangers
    can cause. So each of many concurrent handshakes waits for its turn.

    Args:
        join: runs a function in its turn; if missing, functions run at once.

    Attributes:
        on_freed: called with the number of bytes that a connection has freed at its end; the same for all connections.
    """

    on_freed: ClassVar[Callable[[int], None]] = staticmethod(lambda _: None)

    def __init__(self, join: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._join = join
        self._room = bytearray()
        self._came = b""
        self._tls: asyncio.BufferedProtocol | None = None
        self._begun = False  # whether TLS has its transport
        self._above: asyncio.Transport | None = None  # set when the handshake is over
        self._input_ended = False
        self._lost = False
        self._is_full = False  # whether the transport has paused writing
        self._linger: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's

    def adopt(self, tls: asyncio.BufferedProtocol) -> None:
        """From now on notify TLS of the connection's end; pass on received bytes once TLS has its transport."""
        self._tls = tls
        self._transport.set_protocol(self)
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._begun = True
        if self._came:
            self._offer()

    def get_buffer(self, sizehint: int) -> Any:
        """Return a buffer for received bytes."""
        self._room = bytearray(_ROOM)
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Pause reading until these bytes have been passed on."""
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
        """Pass everything directly to TLS: the handshake is over."""
        assert self._tls is not None
        self._join = None
        self._feed()
        self._room = bytearray()
        self._above = above
        # Set on the instance, so that the loop calls TLS directly. The size of a read is limited, because OpenSSL's
        # buffer never shrinks.
        whole = memoryview(self._tls.get_buffer(PIECE))
        give_back(whole)
        room = whole[:PIECE]
        self.get_buffer = lambda sizehint: room  # type: ignore[method-assign] # noqa: ARG005 - the loop names it
        self.buffer_updated = self._tls.buffer_updated  # type: ignore[method-assign]
        self._transport.set_protocol(self)

    def eof_received(self) -> bool | None:
        """Handle the end of the peer's side."""
        if self._tls is None:
            return False
        if self._above is not None:
            self._end_input()
            return None
        self._input_ended = True
        self._feed()
        # Not in this iteration of the loop: TLS would drop the bytes that came with the end of the handshake.
        asyncio.get_running_loop().call_soon(self._end_input)
        return True

    def _end_input(self) -> None:
        """Pass on the end of input, first to the protocol above TLS: TLS itself would do so only after all writes."""
        if self._lost:
            return
        self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)
        if self._above is not None and not self._above.is_closing():
            cast(asyncio.Protocol, self._above.get_protocol()).eof_received()
        assert self._tls is not None
        self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection."""
        self._lost = True
        try:
            if self._linger is not None:
                self._linger.cancel()
            elif self._above is not None and not self._above.is_closing():
                # TLS reports the loss one iteration of the loop later. Until then the server could give this client
                # data that others should get, as after a BLPOP.
                cast(asyncio.Protocol, self._above.get_protocol()).eof_received()
        finally:
            if self._tls is not None:
                # `_take_apart` would be a reference cycle: it would hold 300 KB until the next garbage collection.
                self.buffer_updated = self._tls.buffer_updated  # type: ignore[method-assign]
                self._tls.connection_lost(exc)
            # TLS lets go of its buffers one iteration of the loop later.
            asyncio.get_running_loop().call_soon(Beneath.on_freed, _KEPT)

    def expect_alert(self) -> None:
        """From now on deliver each record before OpenSSL sees the next: one may be an alert.

        OpenSSL fails at an alert before the loop has delivered the data that came earlier in the same read. So the last
        bytes of each read are decrypted one by one.
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
        """Pause writing: the transport's buffer is full."""
        self._is_full = True
        if self._tls is not None:
            self._tls.pause_writing()
        self._tell_writer()

    def resume_writing(self) -> None:
        """Resume writing."""
        self._is_full = False
        if self._tls is not None:
            self._tls.resume_writing()  # the pending data may fill the transport again
        self._tell_writer()

    def pump(self) -> None:
        """Move the bytes that TLS buffers into the buffer of the transport below, although that is full."""
        assert self._tls is not None
        self._tls.resume_writing()
        self._tls.pause_writing()
        self._tell_writer()

    def _tell_writer(self) -> None:
        """Pause or resume the protocol above TLS. TLS itself looks only at its own buffer, which it empties at once."""
        if self._above is not None and not self._lost:
            protocol = cast(asyncio.Protocol, self._above.get_protocol())
            (protocol.pause_writing if self._is_full else protocol.resume_writing)()


class _Early(asyncio.Protocol):
    """Stores the events that follow a handshake until the protocol has been notified of the connection."""

    def __init__(self) -> None:
        self._protocol: asyncio.Protocol | None = None
        self._happened: list[Callable[[asyncio.Protocol], object]] = []

    def data_received(self, data: bytes) -> None:
        self._note(lambda protocol: protocol.data_received(data))

    def eof_received(self) -> None:
        self._note(lambda protocol: protocol.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        # This call may come even after `set_protocol` has replaced this object: the loop had already scheduled it.
        self._note(lambda protocol: protocol.connection_lost(exc))

    def _note(self, happen: Callable[[asyncio.Protocol], object]) -> None:
        if self._protocol is None:
            self._happened.append(happen)
        else:
            happen(self._protocol)

    def tell(self, protocol: asyncio.Protocol) -> None:
        """Pass stored and future events to a protocol."""
        self._protocol = protocol
        happened, self._happened = self._happened, []
        for happen in happened:
            happen(protocol)


_LOST: Final = "the connection was lost"


class Secured(asyncio.Transport):
    """A TLS transport, as seen by its protocol.

    Args:
        above: the loop's TLS transport.
        beneath: the transport below TLS.
    """

    def __init__(self, above: asyncio.Transport, beneath: asyncio.Transport) -> None:
        super().__init__()
        self._above, self._beneath = above, beneath
        self._write = above.write
        self._is_ending = beneath.is_closing

    def write(self, data: Any) -> None:
        """Send bytes, unless the peer has ended its side."""
        if not self._is_ending():
            if len(data) > PIECE:
                self._write_long(data)
            else:
                self._write(data)

    def _write_long(self, data: Any) -> None:
        """Send many bytes in pieces: each piece passes through OpenSSL's buffer, which never shrinks."""
        between = cast(Beneath, self._beneath.get_protocol())
        with memoryview(data) as whole:
            for begin in range(0, len(whole), PIECE):
                self._write(bytes(whole[begin : begin + PIECE]))
                if self._above.get_write_buffer_size():  # buffered because the transport below is full
                    between.pump()

    def is_closing(self) -> bool:
        """Return whether nothing can be sent any more."""
        return self._above.is_closing() or self._is_ending()

    def is_reading(self) -> bool:
        """Return whether reading is not paused."""
        return not self._is_ending() and self._beneath.is_reading()

    def pause_reading(self) -> None:
        """Pause reading, including the end of input."""
        if not self._is_ending():
            self._beneath.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        if not self._is_ending():
            self._beneath.resume_reading()

    def can_write_eof(self) -> bool:
        """Return False: TLS has no half close."""
        return False

    def expect_alert(self) -> None:
        """Prepare for an alert: after a half close of the connection below, servers send one."""
        cast(Beneath, self._beneath.get_protocol()).expect_alert()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a property of the transport."""
        return self._above.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol."""
        self._above.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._above.get_protocol()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are buffered."""
        return self._above.get_write_buffer_size() + self._beneath.get_write_buffer_size()

    def close(self) -> None:
        """Close after sending all buffered bytes."""
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
) -> asyncio.Transport:
    """Perform the TLS handshake on a connection, attach a protocol to it, and return the TLS transport.

    Args:
        protocol: gets `connection_made` after the handshake, and no call if the handshake fails.
        beneath: the connection, whose protocol is a `Beneath`.
        context: the certificates.
        server_side: whether this is the server's side.
        server_hostname: the name that the server's certificate must contain.
        seconds: time limit, even if the loop is slow; None for the loop's own limit.

    Raises:
        OSError: the handshake failed. The connection is closed.
    """
    loop, between, early = asyncio.get_running_loop(), cast(Beneath, beneath.get_protocol()), _Early()
    secured: asyncio.Transport | None = None

    async def shake_hands() -> asyncio.Transport:
        nonlocal secured
        if beneath.is_closing():
            raise ConnectionResetError(_LOST)  # TLS would not be notified of this end any more
        above = await loop.start_tls(
            beneath,
            early,
            context,
            server_side=server_side,
            server_hostname=server_hostname,
            ssl_handshake_timeout=seconds,
        )
        # `start_tls` raises nothing if the connection ends without an error during the handshake.
        if above is None or above.get_extra_info("ssl_object") is None:
            raise ConnectionResetError(_LOST)
        between.end(above)
        above.set_protocol(protocol)
        secured = Secured(above, beneath)
        protocol.connection_made(secured)
        early.tell(protocol)
        return secured

    handshake = loop.create_task(shake_hands())
    # Read the task's error here, so that the loop does not report it. Unless the task is abandoned, the error is raised
    # below.
    handshake.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        # The loop keeps the order. The handshake task starts and takes the connection before this function resumes. TLS
        # gets its transport first, then received bytes.
        await asyncio.sleep(0)
        if not beneath.is_closing():
            between.adopt(cast(asyncio.BufferedProtocol, beneath.get_protocol()))
        if not (await asyncio.wait((handshake,), timeout=seconds))[0]:
            raise TimeoutError(f"the TLS handshake took longer than {seconds} s")
        return handshake.result()
    except BaseException as error:
        if secured is not None and isinstance(error, asyncio.CancelledError):
            return secured  # the handshake has succeeded: ignore the cancellation
        handshake.cancel()
        beneath.abort()
        early.tell(asyncio.Protocol())  # drop the stored events
        raise
    finally:
        del handshake  # breaks a cycle of frames and errors, which would hold 50 KB until the next garbage collection
