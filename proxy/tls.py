"""TLS connections that are held up, and seen to end, at the transport beneath.

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


class Unsecured(asyncio.Protocol):
    """The protocol of a connection until its TLS handshake is over: hands on to TLS what comes.

    A handshake is most of the work that a stranger can make: where many begin at once each waits for its turn.

    Args:
        join: has something done in its turn; at once where not given.
    """

    def __init__(self, join: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._join = join
        self._came = b""
        self._tls: asyncio.BufferedProtocol | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop derives its own from none

    def begin(self, tls: asyncio.BufferedProtocol) -> None:
        """Hand on to TLS, which has its transport, what came before and what comes."""
        self._tls = tls
        if self._came:
            self._offer()

    def data_received(self, data: bytes) -> None:
        """Read no more until this has been handed on."""
        self._came += data
        self._transport.pause_reading()
        if self._tls is not None:
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
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self) -> None:
        """Leave the connection to TLS."""
        assert self._tls is not None
        self._join = None
        self._feed()
        self._transport.set_protocol(self._tls)

    def eof_received(self) -> bool | None:
        """The other side has ended."""
        if self._tls is None:
            return False
        self._feed()
        # Behind what came with the last part of the handshake, which TLS would drop.
        asyncio.get_running_loop().call_soon(self._tls.eof_received)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is lost."""
        if self._tls is not None:
            self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        """The other side takes no more at present."""
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        """It takes more."""
        if self._tls is not None:
            self._tls.resume_writing()


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
        for happen in self._happened:
            happen(protocol)


class Secured(asyncio.Transport):
    """A TLS transport, as its protocol sees it.

    Args:
        above: the loop's TLS transport.
        beneath: the transport that it uses.
    """

    def __init__(self, above: asyncio.Transport, beneath: asyncio.Transport) -> None:
        super().__init__()
        self._above, self._beneath = above, beneath
        self._parting = False
        self._write = above.write
        self._is_ending = beneath.is_closing

    def write(self, data: Any) -> None:
        """Send bytes, unless the other side has ended: then end too, whether it reads or not."""
        if not self._is_ending():
            self._write(data)
        elif not self._parting:
            self._parting = True
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

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
        return self._above.get_write_buffer_size()

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
        beneath: the connection, with an `Unsecured` protocol.
        context: the certificates.
        server_side: whether this is the server's side.
        server_hostname: the name that the server's certificate has to be for.
        seconds: how long it may take; the loop's own limit if not given.

    Raises:
        OSError: it failed. The connection is closed.
    """
    loop, unsecured, early = asyncio.get_running_loop(), cast(Unsecured, beneath.get_protocol()), _Early()

    async def shake_hands() -> None:
        above = await loop.start_tls(
            beneath,
            early,
            context,
            server_side=server_side,
            server_hostname=server_hostname,
            ssl_handshake_timeout=seconds,
        )
        assert above is not None
        unsecured.end()
        above.set_protocol(protocol)
        protocol.connection_made(Secured(above, beneath))
        early.tell(protocol)

    handshake = loop.create_task(shake_hands())
    handshake.add_done_callback(lambda task: task.cancelled() or task.exception())  # told below, or given up
    try:
        # The loop keeps the order: the handshake begins, and has taken the connection when this goes on; TLS gets its
        # transport, then what has come.
        await asyncio.sleep(0)
        if not beneath.is_closing():
            tls = cast(asyncio.BufferedProtocol, beneath.get_protocol())
            beneath.set_protocol(unsecured)
            loop.call_soon(unsecured.begin, tls)
        await handshake
    except BaseException as error:
        handshake.cancel()
        was_lost = beneath.is_closing()
        beneath.abort()
        if was_lost and isinstance(error, RuntimeError):  # uvloop's word for that
            raise ConnectionResetError("the connection was lost") from error
        raise
