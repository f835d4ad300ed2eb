"""Find out whether the server requires a login: if so, server and proxy read less from a client before its login.

Its tests: tests/test_strangers.py.

The request contains this proxy's name, to find out whether its upstream leads back to it (`Trail`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, cast

import structlog

from proxy.upstream.stay import Stay
from proxy.upstream.words import ProxyBehindError, is_proxys

log = structlog.get_logger("proxy.upstream")

AGAIN_SECONDS: Final = 60.0
"""How often to ask the server: a password can be set while it runs."""

_AFTER_FAILURE: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0


class LoginWatch:
    """Asks the server, on a connection that has not logged in.

    Args:
        connect: opens such a connection; raises OSError or TimeoutError.
        request: makes the request; a server that requires a login returns NOAUTH.

    Attributes:
        wanted: whether the server requires a login, by its last reply.
        asked: set when it has replied for the first time.
    """

    def __init__(
        self,
        connect: Callable[[Callable[[], asyncio.Protocol]], Awaitable[None]],
        request: Callable[[], bytes] = lambda: b"PING\r\n",
    ) -> None:
        self.wanted = True
        self.asked = asyncio.Event()
        self._connect = connect
        self._request = request
        self._stay = Stay(None)  # the stay whose server is asked about logins

    def restart(self) -> None:
        """Ask now, because the upstream is another server, and ignore the old server's reply."""
        self.asked.clear()
        self.again("it is another server")

    def again(self, why: str) -> None:
        """Ask now."""
        before, self._stay = self._stay, Stay(None)
        before.end(why)

    async def run(self) -> None:
        """Ask at intervals until cancelled."""
        while True:
            stay = self._stay
            try:
                self.wanted = await stay.hold(self.ask())
                self.asked.set()
                seconds = AGAIN_SECONDS
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                log.debug("cannot ask the upstream whether it requires a login", error=str(error))
                seconds = _AFTER_FAILURE
            await stay.rest(seconds)

    async def ask(self) -> bool:
        """Return whether the server requires a login.

        Raises:
            OSError: it cannot be reached, or closes the connection.
            TimeoutError: it does not answer in time.
            ProxyBehindError: it is a proxy, and cannot serve clients.
        """
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        probe = _Probe(answer, self._request())
        try:
            await self._connect(lambda: probe)
            async with asyncio.timeout(_PATIENCE_SECONDS):
                line = await answer
            if is_proxys(line.removeprefix(b"-ERR ").decode("utf-8", "replace")):
                raise ProxyBehindError(None)
            return line.startswith(b"-NOAUTH")
        finally:
            probe.close()


class _Probe(asyncio.Protocol):
    """Sends a request and receives the first line of the reply."""

    def __init__(self, answer: asyncio.Future[bytes], request: bytes) -> None:
        self._answer = answer
        self._request = request
        self._line = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._line += data
        if b"\n" in self._line and not self._answer.done():
            self._answer.set_result(self._line)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()
