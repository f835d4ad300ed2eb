"""The life of the proxy: from its settings to listening sockets, and back to nothing in good order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import structlog
import uvloop
from redis.exceptions import RedisError

from proxy import __version__
from proxy.commands.described import ServerCommands
from proxy.embedded.server import EmbeddedError, EmbeddedServer
from proxy.expiry.clock import ServerClock
from proxy.expiry.engine import Engine
from proxy.expiry.leftovers import Leftovers
from proxy.expiry.sweeper import Sweeper
from proxy.expiry.tasks import end
from proxy.expiry.tracker import Tracker
from proxy.relay.budget import HeldBudget
from proxy.relay.client import ClientConnection
from proxy.scripts.naming import Names
from proxy.session.known import KnownKeys
from proxy.session.question import Question
from proxy.session.rewrite import Rewriter
from proxy.session.session import Ground, Session
from proxy.settings import Settings, SettingsError, parse_address
from proxy.upstream.endpoint import Upstream
from proxy.upstream.login import LoginWatch

log = structlog.get_logger("proxy.server")

BACKLOG: Final = 1024


class Server:
    """A running proxy.

    Args:
        settings: the settings.
        upstream: the server that it stands in front of.
    """

    def __init__(self, settings: Settings, upstream: Upstream) -> None:
        self._settings = settings
        self._upstream = upstream
        self._names = Names(settings.prefix.encode())
        self._known = KnownKeys()
        self._clock = ServerClock()
        self._control = upstream.control()
        self._engine = Engine(
            self._control, upstream.database, self._names, self._known, self._clock, settings.sweep_batch
        )
        self._commands = ServerCommands()
        self._logins = LoginWatch(upstream.connect)
        self._ground = Ground(
            Rewriter(self._names, self._known, self._commands),
            self._known,
            self._names.prefix,
            settings.request_limit,
            guarded=settings.reserved_names,
        )
        self.held = HeldBudget(settings.held_limit)
        self.is_plain = self._ground.is_plain
        self._tracker = Tracker(upstream, self._engine, self._known, self._names, self._clock, self._commands)
        self._sweeper = Sweeper(self._engine, self._known, self._clock, self._tracker, enabled=settings.sweep)
        self._connections: set[ClientConnection] = set()
        self._empty = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self._sockets: list[Path] = []

    # What a client's connection needs (relay.client.Surroundings).

    def new_session(self) -> Session:
        """Return a session for a new client."""
        return Session(self._ground, stranger=self._logins.wanted)

    def now(self) -> float:
        """Return the latest that the upstream server's clock can show, in Unix ms."""
        return self._clock.latest()

    async def connect_upstream(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection to the upstream server, once it is known which keys have deadlines that are due soon.

        Raises:
            OSError: it cannot be reached.
            TimeoutError: it did not answer in time.
        """
        if not (self._tracker.settled.is_set() and self._logins.asked.is_set()):
            await self._until_settled()
        await self._upstream.connect(factory)

    async def _until_settled(self) -> None:
        await self._tracker.tried.wait()
        if not self._tracker.settled.is_set():
            raise ConnectionError(self._upstream.state)
        await self._logins.asked.wait()

    def upstream_error(self, error: Exception) -> bytes:
        """Return the error line for a client when the upstream server cannot be reached, or does not answer."""
        reason = " ".join(str(error).split()) or "it did not answer in time"
        text = f"-ERR expiremember-proxy: upstream {self._upstream} is not available: {reason}\r\n"
        return text.encode("utf-8", "replace")

    async def answer(self, question: Question) -> None:
        """Do what a session asks for.

        Raises:
            ConnectionError: the upstream server did not do it.
        """
        try:
            await self._engine.answer(question)
        except RedisError as error:
            raise ConnectionError(str(error)) from error

    def opened(self, connection: ClientConnection) -> None:
        """Note a new connection."""
        self._connections.add(connection)
        self._empty.clear()

    def closed(self, connection: ClientConnection) -> None:
        """Note that a connection has ended."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    # The life of the whole.

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then end in good order.

        Raises:
            SettingsError: an address cannot be listened on.
        """
        tasks = [asyncio.create_task(part.run()) for part in (self._tracker, self._sweeper, self._logins)]
        if self._settings.leftovers_rate:
            leftovers = Leftovers(self._engine, self._known, self._tracker, self._settings.leftovers_rate)
            tasks.append(asyncio.create_task(leftovers.run()))
        try:
            await self._listen()
            await self._tracker.tried.wait()
            log.info(
                "ready",
                listen=self._settings.listen,
                upstream=str(self._upstream),
                upstream_state=self._upstream.state,
                version=__version__,
            )
            # What lives now lives until the end: the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            stopped = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # the others run for ever: one that has ended has failed
            await self._finish()
            log.info("stopped")
        finally:
            for listener in self._listeners:
                listener.close()
            await end(tasks)
            await self._control.aclose()
            for path in self._sockets:
                path.unlink(missing_ok=True)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for address in self._settings.listen:
            where = parse_address(address)
            try:
                if isinstance(where, Path):
                    await _clear_socket(where)
                    listener = await loop.create_unix_server(self._accept, str(where), backlog=BACKLOG)
                    self._sockets.append(where)
                else:
                    listener = await loop.create_server(self._accept, sock=_bind(*where), backlog=BACKLOG)
            except OSError as error:
                raise SettingsError(f"listen: cannot listen on {address}: {error.strerror or error}") from None
            self._listeners.append(listener)

    def _accept(self) -> ClientConnection:
        return ClientConnection(self)

    async def _finish(self) -> None:
        """Accept no more, let requests that run be answered for a bounded time, and close."""
        for listener in self._listeners:
            listener.close()
        if not self._connections:
            return
        log.info("stopping", connections=len(self._connections), timeout=self._settings.shutdown_timeout)
        for connection in list(self._connections):
            connection.finish()
        try:
            async with asyncio.timeout(self._settings.shutdown_timeout):
                await self._empty.wait()
        except TimeoutError:
            log.warning("stopped with requests unanswered", connections=len(self._connections))
            for connection in list(self._connections):
                connection.abandon()
            await asyncio.sleep(0)


def _bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket here, not in the loop, which would start threads to resolve the name.

    In a process with threads each system call on a file descriptor counts references to it: 0.1 to 0.2 µs, four times a
    request.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


async def _clear_socket(path: Path) -> None:
    """Remove the socket that a proxy which was killed has left.

    Raises:
        OSError: somebody listens on it, or it is something else: the loop would remove the one, and must not the other.
    """
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # its backlog is full: it lives
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _raise_file_limit() -> None:
    """Allow as many open files as the system does: each client takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.asynccontextmanager
async def _upstream(settings: Settings, stop: asyncio.Event) -> AsyncIterator[Upstream]:
    """Name the upstream server; start it, and stop it in the end, if it is to be the proxy's own."""
    if not settings.embedded:
        yield Upstream(settings, settings.upstream)
        return
    embedded = EmbeddedServer(settings.embedded_dir)
    await embedded.start()

    async def watch() -> None:
        status = await embedded.wait()
        log.error("the embedded server has ended", status=status)
        stop.set()

    watcher = asyncio.create_task(watch())
    try:
        yield Upstream(settings, embedded.url)
    finally:
        ended = watcher.done()
        watcher.cancel()
        await embedded.stop()
    if ended:
        raise EmbeddedError("the embedded server has ended by itself")


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _upstream(settings, stop) as upstream:
        await Server(settings, upstream).run(stop)


def run(settings: Settings) -> int:
    """Run the proxy until a signal ends it.

    Returns:
        The exit status: 0 after SIGTERM or SIGINT, 1 when the embedded server cannot be had or has ended by itself.

    Raises:
        SettingsError: an address cannot be listened on, or a certificate cannot be used.
    """
    _raise_file_limit()
    try:
        uvloop.run(_serve(settings))
    except EmbeddedError as error:
        log.error("stopped", reason=str(error))
        return 1
    return 0
