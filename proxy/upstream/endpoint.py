"""Connect to the upstream, for clients and for the proxy itself.

Its tests: tests/test_sentinel.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from ssl import SSLContext
from typing import Any, NamedTuple, TypeAlias

from redis._parsers import _AsyncRESP2Parser
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection, DefaultParser, RedisSSLContext
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from proxy import __version__
from proxy.settings import Settings
from proxy.tls import Beneath, secure
from proxy.upstream import tcp
from proxy.upstream.address import Address, UpstreamURL, parse_upstream
from proxy.upstream.certificates import NO_TLS_THERE, handshake_advice, upstream_context
from proxy.upstream.credentials import Credentials
from proxy.upstream.refusals import shown
from proxy.upstream.sentinel import FIND_SECONDS
from proxy.upstream.stay import Stay, Whereabouts
from proxy.upstream.words import CLIENT_NAME, ProxyBehindError, in_words, is_silent_from_the_start

_KNOWS_LIBRARIES = re.compile(rb"7\.[2-9]|([89]|\d\d)\.").match
"""Matches versions that know CLIENT SETINFO. Older servers would count each as an error."""

_POOL = 8

NOT_PRIMARY = "it is a replica, and the Sentinels say that it is the primary"
READ_ONLY = "it is no longer a primary: it refuses writes"

PushHandler: TypeAlias = Callable[[list[Any]], Awaitable[object]]
ListeningConnection: TypeAlias = "_TCPConnection | _UnixConnection | _TLSConnection"


class NotPrimaryError(RedisError):
    """The server is a replica but must be a primary."""


class Upstream:
    """The upstream server: its address, and how to connect to it.

    Args:
        settings: the settings.
        url: its URL; by default the one in the settings.
        through: the proxy that reported this server as its own upstream; None if the URL names the server itself.

    Raises:
        SettingsError: a certificate or the password file cannot be used.

    Attributes:
        database: the number of the database that control connections use.
        state: its state, for people: "not tried yet", "reachable" or what went wrong.
        on_move: called with the old and the new stay, once the old one has ended: because another server has become
            the upstream, or because the server's role has changed.
    """

    def __init__(self, settings: Settings, url: str | UpstreamURL, through: str | None = None) -> None:
        self._url = parsed = url if isinstance(url, UpstreamURL) else parse_upstream(url)
        self._through = "" if through is None else f" (behind {through})"
        self.state = "not tried yet"
        self._settings = settings
        password = parsed.password
        if settings.upstream_password is not None:
            password = settings.upstream_password.get_secret_value()
        self._credentials = Credentials(parsed.user, password, settings.upstream_password_file)
        secret = settings.sentinel_password
        self._sentinel_credentials = Credentials(
            settings.sentinel_user,
            None if secret is None else secret.get_secret_value(),
            settings.sentinel_password_file,
            "sentinel_password_file",
        )
        self.database = parsed.database
        self._where = Whereabouts(parsed.address, sought=bool(parsed.sentinels))
        self._where.on_move = self._moved
        self._where.on_read_only = lambda: self.demoted(READ_ONLY)
        self.on_move: Callable[[Stay, Stay], None] = lambda _before, _now: None
        self._tls = upstream_context(settings) if parsed.tls else None

    # The server's address.

    @property
    def sentinels(self) -> tuple[Address, ...]:
        """The Sentinels that know the server's address; empty if the address is configured."""
        return self._url.sentinels

    @property
    def primary_name(self) -> str:
        """The name by which the Sentinels know the server."""
        return self._url.primary

    @property
    def stay(self) -> Stay:
        """The current stay."""
        return self._where.stay

    def move(self, address: Address, why: str) -> None:
        """Move to another server. All work at the old one ends immediately.

        Args:
            address: the new server's address.
            why: the reason, for people.
        """
        self._where.move(address, why)

    def demoted(self, why: str) -> None:
        """Note that the server is no longer a primary. All work there ends immediately."""
        if self.stay.as_primary:
            self._where.move(self.stay.address, why)

    def not_found(self, why: str, *, tried: bool) -> None:
        """Note that the Sentinels do not report the server's address.

        Args:
            why: what they report instead, for people.
            tried: whether the first attempt is over.
        """
        self._where.missing = why
        if tried:
            self._where.tried()

    async def found(self) -> None:
        """Wait until the server's address is known.

        Raises:
            RedisError: the Sentinels do not report it.
        """
        await self._where.found(FIND_SECONDS)

    def _moved(self, before: Stay) -> None:
        self.state = f"not reached yet ({before.ended})"
        self.on_move(before, self.stay)

    async def greet(self, connection: ListeningConnection) -> bool:
        """Identify the proxy to the server, and find out whether the server is a primary and a cluster node.

        Args:
            connection: a connection on which nothing is outstanding.

        Returns:
            Whether the server is a cluster node. If so, `CLUSTER NODES` shows which nodes are primaries, and a demoted
            node redirects clients itself.

        Raises:
            RedisError: the server does not answer, or is a replica although Sentinels report it as the primary.
            ProxyBehindError: the server is an expiremember-proxy.
        """
        stay = self.stay
        if (proxy := await behind(connection)) is not None:
            raise ProxyBehindError(proxy.upstream, embedded=proxy.embedded)
        await connection.send_command("HELLO")
        said = await connection.read_response()
        if isinstance(said, list):
            said = dict(zip(said[::2], said[1::2], strict=True))
        if _KNOWS_LIBRARIES(said.get(b"version") or b""):
            await introduce(connection)
        stay.check()
        primary = said.get(b"role") == b"master"
        if not primary and self.sentinels:
            self.demoted(NOT_PRIMARY)
            raise NotPrimaryError(NOT_PRIMARY)
        clustered: bool = said.get(b"mode") == b"cluster"
        stay.as_primary = primary and not clustered
        return clustered

    async def is_cluster_node(self, connection: Any) -> bool:
        """Return whether the server is a node of a cluster.

        Args:
            connection: a connection on which nothing is outstanding.

        Raises:
            RedisError: the server does not answer.
        """
        await connection.send_command("INFO", "cluster")
        section: bytes = await connection.read_response()
        return b"cluster_enabled:1" in section

    @property
    def has_a_user_of_its_own(self) -> bool:
        """Whether control connections log in as a dedicated user, perhaps with limited permissions."""
        return self._credentials.names_a_user

    @property
    def user(self) -> bytes:
        """The user that the proxy logs in as."""
        return self._credentials.user.encode()

    @property
    def login(self) -> tuple[str, ...]:
        """The arguments of AUTH: the password, or user and password; empty if no login is needed.

        Raises:
            RedisError: the password file cannot be used.
        """
        return self._credentials.get_credentials() if self._credentials else ()

    def __str__(self) -> str:
        """Return the address without credentials; with Sentinels, the address that they reported last."""
        address = self.stay.address
        url = self._url if address is None else UpstreamURL(self._tls is not None, address=address)
        return f"{url}{self._through}"

    async def itself(self) -> Upstream:
        """Return the server behind this upstream if the upstream is a proxy, otherwise this upstream. Both accept the
        same logins.

        Raises:
            RedisError, OSError, TimeoutError: the upstream does not answer.
            SettingsError: a certificate cannot be used.
        """
        if self.sentinels:
            return self
        connection = self.unnamed_connection()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            proxy = await behind(connection)
        finally:
            await connection.disconnect(nowait=True)
        if proxy is None:
            return self
        own = self._url
        url = replace(parse_upstream(proxy.upstream), user=own.user, password=own.password, database=own.database)
        return Upstream(self._settings, url, str(self))  # it cannot be a proxy: those behind a proxy serve no clients

    @property
    def has_sentinel_login(self) -> bool:
        """Whether there are credentials for Sentinels."""
        return bool(self._sentinel_credentials)

    @property
    def uses_tls(self) -> bool:
        """Whether connections to the server use TLS."""
        return self._tls is not None

    def reload_certificates(self) -> None:
        """Reload the certificate files, for new connections.

        Raises:
            SettingsError: a file cannot be used; the old certificates stay in use.
        """
        if self._tls is not None:
            self._tls = upstream_context(self._settings)

    def advice(self, error: Exception) -> str | None:
        """Return advice about an error of a control connection, if there is any."""
        if isinstance(error, ProxyBehindError):
            return error.advice
        if isinstance(error, AuthenticationError):
            if not self._credentials:
                return "set upstream_password_file, or upstream_password; a user goes in upstream"
            if self._settings.upstream_password_file is not None:
                return f"check the password in {self._settings.upstream_password_file}: it is read at each try"
            return "check user and password: upstream_password_file, upstream_password or upstream"
        if self._tls is not None and is_silent_from_the_start(error):
            return NO_TLS_THERE
        return handshake_advice(error, self._settings) if self._tls is not None else None

    def explain(self, error: Exception) -> str:
        """Return, in plain words for `state`, what an error of a control connection means."""
        if isinstance(error, AuthenticationError):
            if not self._credentials:
                return "it requires a password, and the proxy has none"
            return f"it refuses the proxy's login ({in_words(error)})"
        return in_words(error)

    async def connect(self, factory: Callable[[], asyncio.Protocol]) -> None:
        """Open a connection for a client.

        Raises:
            OSError: the server cannot be reached.
            TimeoutError: the server did not answer within `connect_timeout`.
            MovedError: another server has become the upstream meanwhile.
        """
        loop, stay = asyncio.get_running_loop(), self.stay
        async with asyncio.timeout(self._settings.connect_timeout) as patience:
            factory = partial(_until_made, factory, patience)
            if self._url.path is not None:
                await loop.create_unix_connection(factory, self._url.path)
                stay.check()
                return
            if stay.address is None:
                raise ConnectionError(self._where.missing)
            opening = self._open(factory, *stay.address)
            transport = await (stay.hold(opening) if self.sentinels else opening)
        stay.check()
        connection = transport.get_extra_info("socket")
        if connection is not None:
            # If the connection has closed already (uvloop raises ValueError), the protocol is notified anyway.
            with contextlib.suppress(OSError, ValueError):
                tcp.configure(connection, self._settings.tcp_keepalive, self._settings.tcp_user_timeout)

    async def _open(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> asyncio.Transport:
        loop, context = asyncio.get_running_loop(), self._tls
        if context is None:
            return (await loop.create_connection(factory, host, port))[0]
        transport, _ = await loop.create_connection(Beneath, host, port)
        await secure(factory(), transport, context, server_hostname=host)
        return transport

    def control(self) -> Redis:
        """Make a client for the proxy's own requests (RESP2, replies as bytes; not connected yet)."""
        pool = BlockingConnectionPool(
            connection_class=self._connection_class(), max_connections=_POOL, timeout=None, **self._options(2)
        )
        return Redis(connection_pool=pool)

    def listening_connection(self, invalidated: PushHandler, published: PushHandler) -> ListeningConnection:
        """Make a RESP3 connection that receives the server's pushes (not connected yet).

        Args:
            invalidated: handles a push that names changed keys. `read_response` returns this function's result.
            published: handles a channel's message or the reply to a subscription, likewise.
        """

        parser = _pushing(invalidated, published)
        connection: ListeningConnection = self._connection_class()(**self._options(3), parser_class=parser)
        return connection

    def sentinel_connection(self, sentinel: Address, seconds: float, published: PushHandler) -> ListeningConnection:
        """Make a RESP3 connection to a Sentinel (not connected yet).

        Args:
            sentinel: its address.
            seconds: how long it may take to connect, and to answer.
            published: handles a push from a channel. `read_response` returns this function's result.
        """
        options = self._options(3) | {
            "credential_provider": self._sentinel_credentials or None,
            "db": 0,
            "client_name": None,
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "where": Whereabouts(sentinel),
        }
        kind = _TLSConnection if self._tls is not None else _TCPConnection
        connection: ListeningConnection = kind(**options, parser_class=_pushing(published, published))
        return connection

    def unnamed_connection(self) -> ListeningConnection:
        """Make a RESP2 connection that only logs in (not connected yet).

        The peer may not be a Redis at all. So do not use hiredis as the parser: it allocates an array of 2,000,000,000
        elements as soon as the length has arrived.
        """
        options = self._options(2) | {"client_name": None, "db": 0, "parser_class": _AsyncRESP2Parser}
        connection: ListeningConnection = self._connection_class()(**options)
        return connection

    def _connection_class(self) -> type[ListeningConnection]:
        if self._url.path is not None:
            return _UnixConnection
        return _TLSConnection if self._tls else _TCPConnection

    def _options(self, protocol: int) -> dict[str, Any]:
        settings = self._settings
        options: dict[str, Any] = {
            "credential_provider": self._credentials or None,
            "db": self.database,
            "protocol": protocol,
            "client_name": CLIENT_NAME,
            "socket_timeout": settings.control_timeout,
            "socket_connect_timeout": settings.connect_timeout,
            # Callers handle failures; hidden retries would only mask them.
            "retry": Retry(NoBackoff(), 0),
            "where": self._where,
        }
        if self._url.path is not None:
            return options | {"path": self._url.path}
        options |= {
            "socket_keepalive": settings.tcp_keepalive > 0,
            "socket_keepalive_options": tcp.options(settings.tcp_keepalive, settings.tcp_user_timeout),
        }
        if self._tls is not None:
            options["context"] = lambda: self._tls
        return options


async def introduce(connection: Any) -> None:
    """Send the server the proxy's version; Redis 7.2 and newer show it in CLIENT LIST.

    Args:
        connection: a connection on which nothing is outstanding.
    """
    for words in (("LIB-NAME", CLIENT_NAME), ("LIB-VER", __version__)):
        await connection.send_command("CLIENT", "SETINFO", *words)
        with contextlib.suppress(ResponseError):
            await connection.read_response()


class Behind(NamedTuple):
    """The server behind an expiremember-proxy.

    Attributes:
        upstream: its URL.
        embedded: whether the proxy has started it.
    """

    upstream: str
    embedded: bool


async def behind(connection: Any) -> Behind | None:
    """Return the server behind an expiremember-proxy; None if the peer is not a proxy.

    Args:
        connection: a connection on which nothing is outstanding.

    Raises:
        RedisError: the peer does not answer.
    """
    await connection.send_command("INFO", "expiremember")
    try:
        section = await connection.read_response()
    except ResponseError:
        return None  # no permission for INFO
    lines = section.decode("utf-8", "replace").splitlines() if isinstance(section, bytes) else []
    told = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return Behind(told["upstream"], told.get("embedded") == "1") if "upstream" in told else None


def _until_made(factory: Callable[[], asyncio.Protocol], patience: asyncio.Timeout) -> asyncio.Protocol:
    """Make a protocol that cancels the connect timeout as soon as the connection is made.

    Otherwise a process that is suspended at that moment would give up a connection in use.
    """
    protocol = factory()
    made = protocol.connection_made

    def connection_made(transport: asyncio.BaseTransport) -> None:
        del protocol.connection_made
        if not patience.expired():
            patience.reschedule(None)
        made(transport)

    protocol.connection_made = connection_made  # type: ignore[method-assign]
    return protocol


def _pushing(invalidated: PushHandler, published: PushHandler) -> Callable[[int], Any]:
    """Return a factory for parsers that pass pushes to these functions."""

    def parser(socket_read_size: int) -> Any:
        made: Any = DefaultParser(socket_read_size)  # hiredis's: it supports all kinds of pushes
        made.set_invalidation_push_handler(invalidated)
        made.set_pubsub_push_handler(published)
        return made

    return parser


class _Own(AbstractConnection):
    """A control connection: sends without waiting, and raises no error that shows a secret.

    The connection ends with the stay in which it was opened.
    """

    def __init__(self, *, where: Whereabouts, **options: Any) -> None:
        super().__init__(**options)
        # Turn off redis-py's own CLIENT SETINFO, which is an error before Redis 7.2. `introduce` sends the proxy's.
        for name in ("driver_info", "lib_name", "lib_version"):
            setattr(self, name, None)
        self._where = where
        self._stay: Stay | None = None
        where.note(self)

    async def connect_check_health(self, check_health: bool = True, retry_socket_connect: bool = True) -> None:
        stay = await self._where.found(self.socket_connect_timeout or 0.0)
        if self._stay is not stay:
            await self.disconnect(nowait=True)
            self._stay = stay
            if stay.address is not None:
                self.host, self.port = stay.address
        if not self.is_connected:
            await stay.hold(super().connect_check_health(check_health, retry_socket_connect))

    def sever(self) -> None:
        """Close immediately if the stay has ended, even if replies are outstanding."""
        writer = self._writer
        if writer is not None and self._stay is not None and self._stay.ended is not None:
            writer.transport.abort()

    def send_at_once(self, *words: bytes | str) -> None:
        """Send one request like `send_together`."""
        self.send_together((words,))

    def send_together(self, requests: Iterable[tuple[bytes | str, ...]]) -> None:
        """Append requests to those already sent, without waiting; drop them if the connection is lost.

        redis-py has no public way to do so: its method is a coroutine, so another task may send first. The writer is
        the only internal part of redis-py that the proxy uses, here, in `sever` and in `disconnect`. Therefore
        pyproject.toml limits redis-py's version (tests/test_packaging.py).
        """
        writer = self._writer
        if writer is not None and not writer.is_closing():
            writer.write(b"".join(chunk for words in requests for chunk in self.pack_command(*words)))

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        # When keepalive gives up a connection, redis-py reports a timeout. If uvloop has closed the connection, the
        # next write fails with an unexpected RuntimeError of uvloop.
        try:
            await super().send_packed_command(command, check_health)
        except RuntimeError as error:
            raise RedisConnectionError("the connection was lost") from error

    async def read_response(self, *args: Any, **options: Any) -> Any:
        # All replies come through here, including those to redis-py's login. Errors raised here are shown to clients,
        # probes and the log, so they must not contain passwords.
        try:
            response = await super().read_response(*args, **options)
        except ReadOnlyError as error:
            if self._stay is self._where.stay:
                self._where.on_read_only()
            raise shown(error, self._passwords()) from None
        except RedisError as error:
            if self._stay is not None:
                self._stay.check()  # raises MovedError if this server is no longer the upstream
            raise shown(error, self._passwords()) from None
        if self._stay is not None:
            self._stay.check()
        return response

    def _passwords(self) -> Iterable[str]:
        credentials = self.credential_provider
        return credentials.given if isinstance(credentials, Credentials) else ()


class _TCPConnection(_Own, Connection):
    """A connection without TLS."""


class _UnixConnection(_Own, UnixDomainSocketConnection):
    """A connection to a Unix socket."""


class _TLSConnection(_Own, SSLConnection):
    """A connection with the proxy's own TLS context: the same checks as for clients' connections.

    redis-py's context would also trust the system's certificates if `tls_ca_file` is given.
    """

    def __init__(self, *, context: Callable[[], SSLContext], **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context = _CurrentContext(context)

    async def disconnect(self, nowait: bool = False, *args: Any, **options: Any) -> None:
        """Close immediately: the server's TLS closing alert may never come."""
        writer = self._writer
        await super().disconnect(True, *args, **options)
        if writer is not None:
            writer.transport.abort()


class _CurrentContext(RedisSSLContext):
    """The TLS context that is current when a connection opens: certificates may have been reloaded."""

    def __init__(self, current: Callable[[], SSLContext]) -> None:
        super().__init__()
        self._current = current

    def get(self) -> SSLContext:
        return self._current()
