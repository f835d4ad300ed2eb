"""Find out whether the server requires a login. If so, server and proxy read less from a client that has not logged in.

Its tests: tests/test_strangers.py.

The request contains this proxy's name, to find out whether the upstream leads back to this proxy (`Trail`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, cast

import structlog

from proxy.upstream.stay import Stay
from proxy.upstream.words import ProxyBehindError, in_words, is_proxys

log = structlog.get_logger("proxy.upstream")

AGAIN_SECONDS: Final = 60.0
"""How often to query the server: a password can be set while the server runs."""

_AFTER_FAILURE: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0

_LONGEST_LINE: Final = 4096
"""Maximum number of bytes of the reply: the server returns the names that were sent, or a short error."""


class LoginWatch:
    """Queries the server, on a connection that has not logged in.

    Args:
        connect: opens such a connection; raises OSError or TimeoutError.
        request: makes the request; a server that requires a login returns NOAUTH.
        reachable: returns whether the proxy reaches the server over other connections. If not, a failed query is no
            news, and is not worth a warning.

    Attributes:
        wanted: whether the server requires a login, by its last reply.
        asked: set when the server has replied for the first time.
        trouble: why the last query has failed; empty if it has not.
    """

    def __init__(
        self,
        connect: Callable[[Callable[[], asyncio.Protocol]], Awaitable[None]],
        request: Callable[[], bytes] = lambda: b"PING\r\n",
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self.wanted = True
        self.asked = asyncio.Event()
        self.trouble = ""
        self._connect = connect
        self._request = request
        self._reachable = reachable
        self._fails = False  # whether a failure has been logged, and no success since
        self._stay = Stay(None)  # the stay whose server is queried; `again` ends it to repeat the query

    def restart(self) -> None:
        """Query now, because the upstream is another server, and ignore the old server's reply."""
        self.asked.clear()
        self.again("it is another server")

    def again(self, why: str) -> None:
        """Query now; `why`: the reason why the current attempt or pause ends."""
        before, self._stay = self._stay, Stay(None)
        before.end(why)

    async def run(self) -> None:
        """Query at intervals until cancelled."""
        while True:
            stay = self._stay
            try:
                self.wanted = await stay.hold(self.ask())
                self._succeeded()
                seconds = AGAIN_SECONDS
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed
                self._failed(error, is_news=stay.ended is None and self._reachable())
                seconds = _AFTER_FAILURE
            await stay.rest(seconds)

    def _succeeded(self) -> None:
        self.asked.set()
        self.trouble = ""
        if self._fails:
            self._fails = False
            log.info("login requirement of the upstream is known again", wanted=self.wanted)

    def _failed(self, error: Exception, *, is_news: bool) -> None:
        say = log.warning if is_news and not self._fails else log.debug
        self.trouble = in_words(error)
        say("cannot find out whether the upstream requires a login", error=self.trouble)
        self._fails = self._fails or is_news

    async def ask(self) -> bool:
        """Return whether the server requires a login.

        Raises:
            OSError: the server cannot be reached, or closes the connection.
            TimeoutError: the server does not answer in time.
            ProxyBehindError: the server is a proxy that cannot serve clients.
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
        if self._answer.done():
            return
        self._line += data
        if b"\n" in self._line[:_LONGEST_LINE]:
            self._answer.set_result(self._line)
        elif len(self._line) >= _LONGEST_LINE:
            self._answer.set_exception(ConnectionError("the first line of its reply is too long"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()
