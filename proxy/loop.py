"""The event loop: uvloop's, with two changes. Host names are looked up in threads that do not delay the process's end,
and a protocol is told when the opening of its connection was given up just as it succeeded.

Its tests: tests/test_lookups.py.

The process would wait at its end for uvloop's own lookups, each for as long as the name servers are silent. uvloop has
only four threads for them, and it reports the failure of a lookup that was given up as an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import uvloop

from proxy import names
from proxy.names import Found


class Droppable(asyncio.Protocol, ABC):
    """A protocol that must hear of its connection's end in any case."""

    @abstractmethod
    def dropped(self) -> None:
        """The loop has closed the transport silently: the opening was given up at that moment."""


class _OwnWays(asyncio.AbstractEventLoop):
    """Adds these two changes to a loop."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups: dict[tuple[str, int], list[asyncio.Future[Found]]] = {}

    async def look_up(self, host: str, port: int) -> Found:
        """Return the addresses of a host. Callers that ask for the same host meanwhile share the lookup.

        Raises:
            OSError: it has none.
        """
        if (found := names.numeric(host, port)) is not None:
            return found
        waiter: asyncio.Future[Found] = self.create_future()
        others = self._lookups.get((host, port))
        if others is not None:
            others.append(waiter)
            return await waiter
        self._lookups[host, port] = [waiter]

        def tell(answer: Found | OSError) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.call_soon_threadsafe(self._found, (host, port), answer)

        names.begin(host, port, tell)
        return await waiter

    def _found(self, asked: tuple[str, int], answer: Found | OSError) -> None:
        for waiter in self._lookups.pop(asked):
            if waiter.done():
                continue
            if isinstance(answer, OSError):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Open a connection, as `asyncio.loop.create_connection`, to the first of the host's addresses that takes it.

        Raises:
            OSError: it has no address, or none can be reached.
        """
        with _told(protocol_factory) as factory:
            return await self._create_connection(factory, host, port, options)

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **options: Any) -> Any:
        """Open a connection, as `asyncio.loop.create_unix_connection`."""
        with _told(protocol_factory) as factory:
            return await super().create_unix_connection(factory, path, **options)

    async def _create_connection(self, factory: Any, host: Any, port: Any, options: dict[str, Any]) -> Any:
        if not host or port is None:
            return await super().create_connection(factory, host, port, **options)
        if options.get("ssl") and options.get("server_hostname") is None:
            options["server_hostname"] = host
        failure: OSError | None = None
        for *_, address in await self.look_up(host, int(port)):
            try:
                return await super().create_connection(factory, address[0], address[1], **options)
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = failure or error
        assert failure is not None
        raise failure


@contextlib.contextmanager
def _told(factory: Callable[[], asyncio.BaseProtocol]) -> Iterator[Callable[[], asyncio.BaseProtocol]]:
    """Give a factory whose protocols are told if the opening fails or is cancelled."""
    made: list[asyncio.BaseProtocol] = []

    def make() -> asyncio.BaseProtocol:
        made.append(factory())
        return made[-1]

    try:
        yield make
    except BaseException:
        for protocol in made:
            if isinstance(protocol, Droppable):
                protocol.dropped()
        raise


class Loop(_OwnWays, uvloop.Loop):  # type: ignore[misc]
    """The event loop of the proxy."""


class PlainLoop(_OwnWays, asyncio.SelectorEventLoop):
    """A loop for short commands: uvloop fails when it ends while a TLS connection is being closed.

    Connections that are open at its end are dropped, because a silent TLS peer leaves one half closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._opened: WeakSet[asyncio.WriteTransport] = WeakSet()

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Open a connection, as above, and remember it."""
        transport, protocol = await super().create_connection(protocol_factory, host, port, **options)
        self._opened.add(transport)
        return transport, protocol

    def close(self) -> None:
        """Drop what is still open, and close."""
        if not self.is_closed():
            for transport in self._opened:
                transport.abort()
            self.run_until_complete(asyncio.sleep(0))  # in which sockets are closed
        super().close()


async def look_up(host: str, port: int) -> Found:
    """Return the addresses of a host to listen on, in whatever loop runs.

    Raises:
        OSError: it has none.
        TimeoutError: that was not known in time.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _OwnWays)
    try:
        async with asyncio.timeout(names.PATIENCE_SECONDS):
            return await loop.look_up(host, port)
    except TimeoutError:
        raise names.too_late(names.PATIENCE_SECONDS) from None
