"""The event loop: uvloop's with three changes. Threads that do not delay the process's exit look up host names. A
protocol is notified if connecting fails or is cancelled after the protocol was created. Signals are blocked at the end.

Its tests: tests/test_lookups.py.

At exit uvloop would wait for its own lookups as long as name servers do not answer. It has only four threads for
lookups, and reports the failure of a cancelled lookup as an unhandled error.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVarTuple
from weakref import WeakSet

import uvloop

from proxy import names
from proxy.held_signals import hold
from proxy.names import Found
from proxy.tls import Beneath, secure

_Arguments = TypeVarTuple("_Arguments")


class Droppable(asyncio.Protocol, ABC):
    """A protocol that is notified of its connection's end even if connecting fails."""

    @abstractmethod
    def dropped(self) -> None:
        """The loop has closed the transport silently, because connecting failed or was cancelled."""


class _OwnWays(asyncio.AbstractEventLoop):
    """Makes the first two changes to a loop: lookups and notification."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups: dict[tuple[str, int], list[asyncio.Future[Found]]] = {}

    async def look_up(self, host: str, port: int) -> Found:
        """Resolve a host name. Concurrent callers for the same host and port share one lookup.

        Raises:
            OSError: the name has no address.
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
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
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
        """Connect to the first address of a host that accepts, like `asyncio.loop.create_connection`.

        Raises:
            OSError: the host has no address, or none is reachable.
        """
        with _told(protocol_factory) as factory:
            return await self._create_connection(factory, host, port, options)

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **options: Any) -> Any:
        """Connect to a Unix socket, like `asyncio.loop.create_unix_connection`."""
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
    """Yield a factory whose protocols are notified if connecting fails or is cancelled."""
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

    def __init__(self) -> None:
        super().__init__()
        self._handles_signals = False

    def add_signal_handler(self, sig: int, callback: Callable[[*_Arguments], object], *args: *_Arguments) -> None:
        """Call a function on a signal."""
        super().add_signal_handler(sig, callback, *args)
        self._handles_signals = True

    def close(self) -> None:
        """Block the signals that the loop handled, as they would now change the exit status; then close the loop."""
        if self._handles_signals:
            hold()
        super().close()

    async def _create_connection(self, factory: Any, host: Any, port: Any, options: dict[str, Any]) -> Any:
        """Perform the TLS handshake with `secure`: uvloop would log an error if the connection ended meanwhile."""
        context, name = options.pop("ssl", None), options.pop("server_hostname", None)
        if not context:
            return await super()._create_connection(factory, host, port, options)
        seconds = options.pop("ssl_handshake_timeout", None)
        beneath, _ = await super()._create_connection(Beneath, host, port, options)
        protocol, task = factory(), asyncio.current_task()
        cancelled = 0 if task is None else task.cancelling()
        transport = await secure(protocol, beneath, context, server_hostname=name or host, seconds=seconds)
        # `secure` ignores a cancellation at the moment of success.
        if task is not None and task.cancelling() > cancelled:
            transport.abort()
            raise asyncio.CancelledError
        return transport, protocol


class PlainLoop(_OwnWays, asyncio.SelectorEventLoop):
    """A loop for short commands: uvloop would fail at exit while a TLS connection is being closed.

    At exit the loop drops open connections, because a silent TLS peer would leave them half closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._opened: WeakSet[asyncio.WriteTransport] = WeakSet()

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connect like `Loop`, and remember the transport."""
        transport, protocol = await super().create_connection(protocol_factory, host, port, **options)
        self._opened.add(transport)
        return transport, protocol

    def close(self) -> None:
        """Drop open connections, and close the loop."""
        if not self.is_closed():
            for transport in self._opened:
                transport.abort()
            self.run_until_complete(asyncio.sleep(0))  # lets the loop close sockets
        super().close()


async def look_up(host: str, port: int) -> Found:
    """Resolve a host to listen on, in any running loop.

    Raises:
        OSError: the name has no address.
        TimeoutError: the lookup took too long.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _OwnWays)
    try:
        async with asyncio.timeout(names.PATIENCE_SECONDS):
            return await loop.look_up(host, port)
    except TimeoutError:
        raise names.too_late(names.PATIENCE_SECONDS) from None
