"""The listening sockets: accept clients up to a limit, refuse the others, and recover from running out of files.

Its tests: tests/test_limits.py.

A client counts as soon as it is accepted, before its PROXY header or TLS handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from proxy.addresses import UNLISTED
from proxy.listen.binding import FileAt, Listener, bind_all, close_all, shown
from proxy.listen.header import OnlyLookedError, is_among, networks, take_header
from proxy.listen.others import Others
from proxy.listen.sockets import MORE_FILES, is_loopback
from proxy.logs import Seldom
from proxy.metrics.table import Metrics
from proxy.relay.client import ClientConnection
from proxy.relay.turns import TurnQueue
from proxy.session.turns import Turns
from proxy.settings import Settings
from proxy.tls import Beneath, secure
from proxy.upstream.certificates import listening_context
from proxy.wire import proxied
from proxy.wire.proxied import ProxyHeaderError

log = structlog.get_logger("proxy.listen")

REFUSED: Final = b"-ERR max number of clients reached\r\n"
"""Redis's own text, which client libraries recognise."""

REFUSED_AT_ONCE: Final = 32
"""Maximum number of refused clients kept open for a moment, so that they can read the reason."""

FAREWELL_SECONDS: Final = 1.0
"""How long a refused client is kept open."""

RESERVED_FILES: Final = 64 + REFUSED_AT_ONCE
"""Open files reserved for everything but clients: listening sockets, the proxy's own connections, the log, refused
clients."""

_AT_ONCE: Final = 100
"""Clients to accept before other work gets its turn."""

_PAUSE_SECONDS: Final = 0.2
"""How long to stop accepting after a failure."""


def client_limit(max_clients: int, files: int) -> int:
    """Return how many clients can be served at once.

    Args:
        max_clients: the setting; 0 for as many as the files allow.
        files: how many files the process may have open. A client takes two.
    """
    possible = max(1, (files - RESERVED_FILES) // 2)
    return min(max_clients, possible) if max_clients else possible


class Listeners:
    """All addresses that clients can connect to.

    This class replaces asyncio's server, which does not count clients, and closes them silently when files run out.

    Args:
        settings: the settings.
        limit: maximum number of clients.
        new_connection: makes the protocol for a client.
        metrics: the metrics to update.
        others: the other workers; none by default.

    Attributes:
        clients: every accepted client, with its socket, until `left`; including those whose PROXY header or TLS
            handshake is pending.
    """

    def __init__(
        self,
        settings: Settings,
        limit: int,
        new_connection: Callable[[], ClientConnection],
        metrics: Metrics,
        others: Others | None = None,
    ) -> None:
        self.clients: dict[ClientConnection, socket.socket] = {}
        self._settings = settings
        self._limit = limit
        self._new_connection = new_connection
        self._metrics = metrics
        self._others = others or Others(limit)
        self._balancers = networks(settings.listen_proxy_protocol)
        self._listeners: list[Listener] = []
        self._places: list[int] = []  # each listener's number, the same in all workers
        self._context: ssl.SSLContext | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()  # tasks of TLS handshakes, and of waits for a PROXY header
        self._turns = TurnQueue(Turns())  # the turns of handshakes
        self._refused: dict[socket.socket, asyncio.TimerHandle] = {}
        self._say_refused = Seldom(log.warning, "clients refused: max_clients reached")
        self._say_unlisted = Seldom(log.warning, "clients refused: not in listen_proxy_protocol")
        self._say_failed = Seldom(log.error, "cannot accept clients")
        self._say_header = Seldom(log.warning, "client refused: no usable proxy header")
        self._say_handshake = Seldom(log.warning, "client TLS handshake failed")

    async def open(self, file_at: FileAt, given: list[Listener] | None = None) -> None:
        """Listen at all addresses.

        Args:
            file_at: see `Succession.file`.
            given: the sockets, if they have been bound already.

        Raises:
            SettingsError: the proxy cannot listen on an address, or cannot use a certificate.
        """
        if self._settings.listen_tls_cert_file is not None:
            self._context = listening_context(self._settings)
        self._listeners = given if given is not None else (await bind_all(self._settings, file_at))[0]

    def accept(self) -> None:
        """Accept clients at all addresses."""
        places = {listener.name: place for place, listener in reversed(list(enumerate(self._listeners)))}
        self._places = [places[listener.name] for listener in self._listeners]
        for number in range(len(self._listeners)):
            self._resume(number)
        self._others.begin(self._receive)

    @property
    def addresses(self) -> list[str]:
        """The addresses as the log shows them."""
        pairs = zip(dict.fromkeys(self._settings.listen), self._listeners, strict=False)
        return [shown(address, listener) for address, listener in pairs]

    @property
    def sockets(self) -> list[Listener]:
        """All listening sockets."""
        return self._listeners

    def close(self, *, relieved: bool = False) -> None:
        """Stop accepting. Harmless if already closed.

        Args:
            relieved: whether another process continues to listen. If so, pending PROXY headers and TLS handshakes may
                still be completed, until the next call.
        """
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            if listener.pause is not None:
                listener.pause.cancel()
            loop.remove_reader(listener.socket)
        self._others.end()
        listeners, self._listeners = self._listeners, []
        close_all(listeners)
        for task in () if relieved else self._handshakes:
            task.cancel()
        for refused in list(self._refused):
            self._dismiss(refused)

    async def until_made(self) -> None:
        """Wait until every accepted client has its connection or has failed to get one."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def remove_paths(self) -> None:
        """Remove the files of Unix sockets, and do nothing else: the process is ending."""
        for listener in self._listeners:
            if listener.file is not None:
                listener.file.remove()

    def reload_certificates(self) -> None:
        """Reload the certificate files, for new clients.

        Raises:
            SettingsError: a file cannot be used; the old certificates stay in use.
        """
        if self._context is not None:
            self._context = listening_context(self._settings)

    def left(self, connection: ClientConnection) -> None:
        """Note that a client has gone."""
        self.clients.pop(connection, None)
        self._others.note(len(self.clients))

    def exposed(self) -> list[str]:
        """Return the addresses that other machines can reach without a client certificate."""
        return [
            listener.address
            for listener in self._listeners
            if listener.address is not None
            and not is_loopback(str(listener.socket.getsockname()[0]))
            and not (listener.tls and self._settings.listen_tls_ca_file is not None)
        ]

    def _resume(self, number: int) -> None:
        listener = self._listeners[number]
        listener.pause = None
        asyncio.get_running_loop().add_reader(listener.socket, self._accept, number)

    def _accept(self, number: int) -> None:
        listener = self._listeners[number]
        for _ in range(_AT_ONCE):
            try:
                client, address = listener.socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # Files or memory have run out. The socket stays readable: without a pause the loop would spin.
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.socket)
                listener.pause = loop.call_later(_PAUSE_SECONDS, self._resume, number)
                self._say_failed(error=error.strerror, clients=len(self.clients), advice=MORE_FILES)
                return
            client.setblocking(False)
            if self._is_proxied(listener) and not is_among(address[0], self._balancers):
                self._refuse_unlisted(client, listener, address)
            elif not self._others.hand_over(client, self._places[number], len(self.clients)):
                self._admit(client, listener)

    def _receive(self, client: socket.socket, number: int) -> None:
        """Take over a client that another worker has accepted."""
        if number < len(self._listeners):
            self._admit(client, self._listeners[number])
        else:
            client.close()  # this process no longer accepts

    def _admit(self, client: socket.socket, listener: Listener) -> None:
        if self._others.has_room(len(self.clients)):
            self._take(client, listener)
        else:
            self._refuse(client, listener)

    def _is_proxied(self, listener: Listener) -> bool:
        """Return whether clients of this listener come through load balancers that send a PROXY header."""
        return bool(self._balancers) and listener.socket.family != socket.AF_UNIX

    def _take(self, client: socket.socket, listener: Listener) -> None:
        connection = self._new_connection()
        self._metrics.client_connections_total += 1
        self.clients[connection] = client
        self._others.note(len(self.clients))
        context, is_proxied = self._context if listener.tls else None, self._is_proxied(listener)
        task = asyncio.get_running_loop().create_task(self._connect(connection, client, context, is_proxied))
        task.add_done_callback(partial(self._connected, connection, client))
        for tasks in (self._tasks, self._handshakes) if listener.tls or is_proxied else (self._tasks,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def _connected(self, connection: ClientConnection, client: socket.socket, task: asyncio.Task[None]) -> None:
        """Drop a client whose task was cancelled; the task may never have begun to run."""
        if task.cancelled():
            self._drop(connection, client)

    def _drop(self, connection: ClientConnection, client: socket.socket) -> None:
        self.left(connection)
        connection.dropped()
        client.close()

    async def _connect(
        self, connection: ClientConnection, client: socket.socket, context: ssl.SSLContext | None, is_proxied: bool
    ) -> None:
        """Hand a client over to its protocol, after the PROXY header and the TLS handshake, if any."""
        loop, seconds = asyncio.get_running_loop(), self._settings.listen_tls_timeout
        peer = _name(client) if context is not None or is_proxied else ""
        reads_header = is_proxied
        try:
            if is_proxied:
                peer = connection.source = await take_header(client, seconds) or peer
                reads_header = False
            if context is None:
                if (task := asyncio.current_task()) is not None:
                    self._handshakes.discard(task)  # from here on the protocol is notified when the client disconnects
                await loop.connect_accepted_socket(lambda: connection, client)
            else:
                transport, _ = await loop.connect_accepted_socket(lambda: Beneath(self._turns.join), client)
                await secure(connection, transport, context, server_side=True, seconds=seconds)
        except Exception as error:
            self._drop(connection, client)  # whatever went wrong, nothing else removes the client from the count
            if not isinstance(error, OSError | ProxyHeaderError):
                log.error("connection closed: internal error", exc_info=error)
                return
            text = " ".join(str(error).split()) or type(error).__name__
            if reads_header:
                if not isinstance(error, OnlyLookedError):
                    self._metrics.client_connections_rejected_total["proxy_header"] += 1
                    self._say_header(peer=peer, error=text)
            elif context is not None:
                self._metrics.client_connections_rejected_total["tls_handshake"] += 1
                self._say_handshake(client=peer, error=text)

    def _refuse(self, client: socket.socket, listener: Listener) -> None:
        self._metrics.client_connections_rejected_total["max_clients"] += 1
        self._say_refused(max_clients=self._limit)
        self._turn_away(client, listener, REFUSED)

    def _refuse_unlisted(self, client: socket.socket, listener: Listener, address: tuple[str, int]) -> None:
        self._metrics.client_connections_rejected_total["proxy_network"] += 1
        self._say_unlisted(peer=proxied.shown(address[0], address[1]))
        self._turn_away(client, listener, UNLISTED)

    def _turn_away(self, client: socket.socket, listener: Listener, line: bytes) -> None:
        if listener.tls:
            client.close()  # the client expects a handshake, not a line; Redis does the same
            return
        try:
            client.send(line)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            client.close()
            return
        # Do not close yet: a close with a request unread would reset the connection, and the line would be lost.
        if len(self._refused) >= REFUSED_AT_ONCE:
            self._dismiss(next(iter(self._refused)))
        self._refused[client] = asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._dismiss, client)

    def _dismiss(self, client: socket.socket) -> None:
        self._refused.pop(client).cancel()
        client.close()


def _name(client: socket.socket) -> str:
    with contextlib.suppress(OSError):
        address = client.getpeername()
        if isinstance(address, tuple):
            return proxied.shown(address[0], address[1])
    return ""
